"""The checker itself, on made-up trees: it must find what it is there to find, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check_includes


class CheckIncludes(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = pathlib.Path(self._folder.name)
        for part in check_includes.MAY_INCLUDE:
            (self.root / "src" / part).mkdir(parents=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def found(self):
        return [(file.as_posix(), line) for file, line, _ in check_includes.violations(self.root)]

    def test_a_tree_that_follows_the_rules_is_clean(self):
        self.write("src/base/check.h", "#pragma once\n#include <string>\n")
        self.write("src/memory/heap.h", '#include "base/check.h"\n#include "memory/frame.h"\n')
        self.write("src/engine/engine.cc", '#include "io/store.h"\n#include "plan/policy.h"\n')
        self.write("src/torch/runtime.h", "")
        self.write("src/torch/runtime.cc", '#include <torch/torch.h>\n#include "torch/runtime.h"\n#include "engine/e.h"\n')
        self.write("tests/memory/heap_test.cc", '#include "memory/heap.h"\n#include "io/store.h"\n')
        self.write("tests/torch/runtime_test.cc", "#include <ATen/ATen.h>\n")
        self.assertEqual(self.found(), [])

    def test_each_arrow_that_points_back_is_found(self):
        for part, allowed in check_includes.MAY_INCLUDE.items():
            for other in check_includes.MAY_INCLUDE:
                with self.subTest(part=part, other=other):
                    self.write(f"src/{other}/header.h", "")
                    self.write(f"src/{part}/source.cc", f'#include <vector>\n#include "{other}/header.h"\n')
                    expected = [] if other == part or other in allowed else [(f"src/{part}/source.cc", 2)]
                    self.assertEqual(self.found(), expected)
                    (self.root / "src" / part / "source.cc").unlink()

    def test_the_arrows_have_no_cycle(self):
        order = list(check_includes.MAY_INCLUDE)
        for part, allowed in check_includes.MAY_INCLUDE.items():
            for other in allowed:
                self.assertLess(order.index(other), order.index(part), f"{part} -> {other}")

    def test_angle_brackets_and_odd_spacing_do_not_hide_an_include(self):
        self.write("src/base/a.cc", "  #  include   <memory/heap.h>\n")
        self.assertEqual(self.found(), [("src/base/a.cc", 1)])

    def test_standard_headers_with_the_name_of_a_part_are_not_parts(self):
        self.write("src/base/a.cc", "#include <memory>\n#include <sys/io.h>\n")
        self.write("include/bottomless/a.h", "#include <memory>\n")
        self.assertEqual(self.found(), [])

    def test_torch_outside_its_places_is_found(self):
        for name in ["torch/torch.h", "ATen/core/Tensor.h", "c10/util/Exception.h"]:
            for place in ["src/engine/a.cc", "src/cli/a.cc", "include/bottomless/a.h", "tests/engine/a.cc"]:
                with self.subTest(name=name, place=place):
                    self.write(place, f"#include <{name}>\n")
                    self.assertEqual(self.found(), [(place, 1)])
                    (self.root / place).unlink()

    def test_torch_in_its_places_is_fine(self):
        for place in check_includes.MAY_NAME_TORCH:
            self.write(place + "a.cc", "#include <torch/torch.h>\n")
        self.assertEqual(self.found(), [])

    def test_torch_in_quotes_is_ours_only_where_the_file_exists(self):
        self.write("src/engine/a.cc", '#include "torch/extension.h"\n')
        self.assertEqual(self.found(), [("src/engine/a.cc", 1)])

    def test_an_unknown_part_is_found(self):
        self.write("src/magic/a.cc", "")
        self.assertEqual(self.found(), [("src/magic/a.cc", 1)])

    def test_a_public_header_may_not_include_a_private_one(self):
        self.write("src/base/check.h", "")
        self.write("include/bottomless/a.h", '#include <bottomless/bytes.h>\n#include "base/check.h"\n')
        self.assertEqual(self.found(), [("include/bottomless/a.h", 2)])

    def test_the_program_says_so_by_its_exit_code(self):
        def run():
            program = [sys.executable, "-B", check_includes.__file__, str(self.root)]
            return subprocess.run(program, capture_output=True, text=True, check=False)

        self.assertEqual(run().returncode, 1, "an empty tree must not pass")
        self.write("src/base/a.cc", "")
        self.assertEqual(run().returncode, 0)
        self.write("src/memory/heap.h", "")
        self.write("src/base/a.cc", '#include "memory/heap.h"\n')
        outcome = run()
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("src/base/a.cc:1: 'base' may not include 'memory'", outcome.stdout)


if __name__ == "__main__":
    unittest.main()
