"""What a random program consists of. Its repr is Python that makes it again."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Block:
    """Statements that run in a particular way.

    threads: each body on a thread of its own, on tensors of its own. fork: the first body in a forked child, the
    second meanwhile in the parent. signals: while a timer interrupts every millisecond or faster.
    """

    kind: str
    bodies: tuple


@dataclasses.dataclass(frozen=True)
class Program:
    """A statement is Python text or a Block. Memory and options are the limit's, threads are torch's."""

    memory: int
    threads: int
    eagerly: bool
    disks: int
    options: dict
    ends_by_itself: bool  # through Python's own shutdown, with its tensors alive
    statements: tuple

    def with_statements(self, statements):
        return dataclasses.replace(self, statements=tuple(statements))

    def with_memory(self, memory):
        return dataclasses.replace(self, memory=memory)

    def kinds(self):
        return {statement.kind for statement in self.statements if isinstance(statement, Block)}

    def script(self):
        """The program as a script that runs it both ways and prints where they differ."""
        lines = [
            "from torture.program import Block, Program",
            "from torture.runner import replay",
            "",
            "program = Program(",
        ]
        for field in dataclasses.fields(self):
            if field.name != "statements":
                lines.append(f"    {field.name}={getattr(self, field.name)!r},")
        lines.append("    statements=(")
        for statement in self.statements:
            if isinstance(statement, str):
                lines.append(f"        {statement!r},")
                continue
            lines.append(f"        Block({statement.kind!r}, (")
            for body in statement.bodies:
                lines.append("            (")
                lines += [f"                {inner!r}," for inner in body]
                lines.append("            ),")
            lines.append("        )),")
        return "\n".join(
            [*lines, "    ),", ")", 'if __name__ == "__main__":', "    raise SystemExit(replay(program))"]
        )


def shortest(statements, goes_wrong):
    """What is left when nothing more can be left out: runs of statements, blocks around them, what is inside."""
    part = max(1, len(statements) // 2)
    while part:
        at = 0
        while at < len(statements):
            less = statements[:at] + statements[at + part :]
            if goes_wrong(less):
                statements = less
            else:
                at += part
        part //= 2
    for index in reversed(range(len(statements))):
        block = statements[index]
        if isinstance(block, str):
            continue
        before, after = statements[:index], statements[index + 1 :]
        if goes_wrong(before + sum(block.bodies, ()) + after):
            return shortest(before + sum(block.bodies, ()) + after, goes_wrong)
        bodies = list(block.bodies)
        for which in range(len(bodies)):

            def with_body(body):
                return before + (Block(block.kind, (*bodies[:which], body, *bodies[which + 1 :])),) + after

            bodies[which] = shortest(bodies[which], lambda body: goes_wrong(with_body(body)))
        statements = with_body(bodies[-1])
    return statements
