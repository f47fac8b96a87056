"""What a rank whose script is done takes over from the others, so that its optimizer does as theirs: the numbers of param_groups."""

from __future__ import annotations

from typing import Any, Iterator

import torch

_NOT_OPTIONS = ("params", "param_names")


def numbers_of(groups: list[dict[str, Any]]) -> list[float]:
    """Rates, decays, momenta, pairs of betas, switches: in an order that is the same on every rank."""
    return [number for group in groups for name in _options(group) for number in _numbers_in(group[name])]


def set_numbers(groups: list[dict[str, Any]], numbers: Iterator[float]) -> None:
    """The way back. Values keep their types; what is no number stays as it is."""
    for group in groups:
        for name in _options(group):
            group[name] = _with_numbers(group[name], numbers)


def _options(group: dict[str, Any]) -> list[str]:
    return sorted(name for name in group if name not in _NOT_OPTIONS)


def _numbers_in(value: Any) -> list[float]:
    if type(value) in (tuple, list):
        return [number for each in value for number in _numbers_in(each)]
    if isinstance(value, (bool, int, float)):
        return [float(value)]
    return [float(value)] if _is_number(value) else []


def _with_numbers(value: Any, numbers: Iterator[float]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_with_numbers(each, numbers) for each in value)
    if isinstance(value, (bool, int, float)):
        return type(value)(next(numbers))
    return value.fill_(next(numbers)) if _is_number(value) else value


def _is_number(value: Any) -> bool:
    return torch.is_tensor(value) and value.numel() == 1 and not value.is_complex()
