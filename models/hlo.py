"""Compiled programs as text: computations, instructions, shapes, and how often a loop runs its body.

XLA prints an optimised module as text, and that text says more than the compiler's own totals, which count the body of
a loop once. The grammar read here is that of the HLO printer as far as counting needs it: nothing is executed.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ladder.errors import InputError

BYTES = {  # of an element; sub-byte types count as whole bytes, as XLA stores them unless packed
    **dict.fromkeys(("pred", "s8", "u8", "s4", "u4", "s2", "u2", "s1", "u1"), 1),
    **dict.fromkeys(("f8e4m3fn", "f8e4m3", "f8e5m2", "f8e4m3b11fnuz", "f8e8m0fnu", "f4e2m1fn"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
    "token": 0,
    "opaque": 0,
}


@dataclass(frozen=True)
class Shape:
    """An array in a program: element type and dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes without the padding of a layout."""
        return math.prod(self.dims) * BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class Instruction:
    """One instruction: `shapes` are its results (several for a tuple), `attributes` the text after the operands."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    root: bool

    @property
    def bytes(self) -> int:
        """Bytes of all results."""
        return sum(shape.bytes for shape in self.shapes)

    def attribute(self, name: str) -> str | None:
        """Return the text of attribute `name` up to the next comma outside brackets, or None where it is not there."""
        found = re.search(rf"(?:^|[ ,]){re.escape(name)}=", self.attributes)
        if not found:
            return None
        depth, start = 0, found.end()
        for at in range(start, len(self.attributes)):
            character = self.attributes[at]
            depth += (character in "{[(") - (character in "}])")
            if character == "," and depth == 0:
                return self.attributes[start:at].strip()
        return self.attributes[start:].strip()

    def called(self, name: str) -> str | None:
        """Return the computation that attribute `name` names."""
        text = self.attribute(name)
        return text.lstrip("%") if text else None

    def number(self, name: str) -> int | None:
        """Return the integer under key `name` of the backend's configuration, where it holds one."""
        found = re.search(rf'"{re.escape(name)}":"?(\d+)', self.attributes)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they are printed, which for a scheduled module is that of execution."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by their names."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that take each result."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in instruction.operands:
                found.setdefault(operand, []).append(instruction)
        return found

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next((each for each in self.instructions if each.root), self.instructions[-1])

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Parameters by their numbers."""
        return {int(each.literal): each for each in self.instructions if each.opcode == "parameter"}


@dataclass(frozen=True)
class Module:
    """A compiled program of one device."""

    computations: dict[str, Computation]
    entry: str


_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=? ]*)\]")
_OPEN = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*\(.*\)\s*->.*\{\s*$")
_CLOSE = re.compile(r"^\}(, execution_thread=.*)?\s*$")  # a kernel's line may break before a brace of its own
_START = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = ")
_NAMED = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$", re.DOTALL)


def _shapes(text: str) -> tuple[Shape, ...]:
    # A dimension printed as <=n is bounded by n, the size of its buffer.
    return tuple(
        Shape(kind, tuple(int(each.strip(" <=?")) for each in dims.split(",") if each.strip(" <=?")))
        for kind, dims in _SHAPE.findall(text)
        if kind in BYTES
    )


def _closing(text: str, start: int) -> int:
    """Return where the bracket that opens at `start` closes."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "({[") - (text[at] in ")}]")
        if depth == 0:
            return at
    raise InputError(f"a bracket is not closed in the HLO line {text[:120]!r}; is the text cut off?")


def _instruction(text: str) -> Instruction | None:
    named = _NAMED.match(text)
    if not named:
        return None
    root, name, rest = bool(named.group(1)), named.group(2), named.group(3)
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    close = _closing(rest, opening)
    opcode = rest[end:opening].split()[-1]
    inside = rest[opening + 1 : close]
    operands = () if opcode in ("parameter", "constant") else tuple(re.findall(r"%([\w.\-]+)", inside))
    literal = "" if operands else inside.strip()
    return Instruction(name, opcode, _shapes(rest[:end]), operands, literal, rest[close + 1 :], root)


def _statements(lines: list[str]) -> Iterator[str]:
    """Yield the text of each instruction; those of kernels hold line breaks."""
    held = ""
    for line in lines:
        if _START.match(line) and held:
            yield held
            held = ""
        held = f"{held}\n{line}" if held else line
    if held:
        yield held


def parse_hlo(text: str) -> Module:
    """Return the module that `text`, as `compiled.as_text()` prints it, describes.

    Raises InputError where the text holds no entry computation or is cut off.
    """
    computations: dict[str, Computation] = {}
    entry, name, lines = "", "", list[str]()
    for line in text.splitlines():
        if not name:
            if opened := _OPEN.match(line):
                name, lines = opened.group(2), []
                entry = name if opened.group(1) else entry
        elif _CLOSE.match(line):
            found = [_instruction(statement) for statement in _statements(lines)]
            computations[name] = Computation(name, tuple(each for each in found if each))
            name = ""
        else:
            lines.append(line)
    if not entry or name:
        raise InputError("the HLO text holds no whole entry computation; give the text of a compiled module.")
    return Module(computations, entry)


def _constant(module: Module, caller: Computation, name: str, depth: int = 0) -> int | None:
    """Return the integer that `name` holds in `caller`, through copies and conversions, where it is a constant."""
    instruction = caller.by_name.get(name)
    if instruction is None or depth > 8:
        return None
    if instruction.opcode == "constant":
        whole = instruction.shapes[0].dtype[0] in "su" and re.fullmatch(r"-?\d+", instruction.literal)
        return int(instruction.literal) if whole else None
    if instruction.opcode in ("copy", "convert", "bitcast", "bitcast-convert", "copy-done", "copy-start"):
        return _constant(module, caller, instruction.operands[0], depth + 1)
    return None


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Return how often `loop`, a while instruction of `caller`, runs its body; None where the text does not say.

    XLA writes it beside the loop on some backends; on a TPU it is read from the condition, a comparison of a counter
    with a constant, whose counter starts at a constant and is raised by one.
    """
    if (known := re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attributes)) is not None:
        return int(known.group(1))
    condition = module.computations[loop.called("condition") or ""]
    state = caller.by_name.get(loop.operands[0]) if loop.operands else None
    test = condition.root
    inner, outer = condition, {}
    if test.opcode == "fusion":  # the comparison alone, fused: its parameters are the fusion's operands
        inner = module.computations[test.called("calls") or ""]
        outer = {parameter.name: test.operands[at] for at, parameter in inner.parameters.items()}
        test = inner.root
    if test.opcode != "compare" or len(test.operands) != 2:
        return None

    def value(name: str) -> int | None:
        """Return the number behind an operand of the comparison, and for an element of the state where it starts."""
        here = _constant(module, inner, name)
        if here is not None:
            return here
        name = outer.get(name, name)
        element = condition.by_name.get(name)
        while element is not None and element.opcode in ("copy", "convert", "bitcast"):
            element = condition.by_name.get(element.operands[0])
        if element is None:
            return None
        if element.opcode == "constant":
            return _constant(module, condition, element.name)
        at = element.attribute("index") if element.opcode == "get-tuple-element" else None
        if at is None or state is None or state.opcode != "tuple":
            return None
        return _constant(module, caller, state.operands[int(at)])

    bounds = [value(operand) for operand in test.operands]
    direction = test.attribute("direction")
    if direction in ("GT", "GE"):
        bounds.reverse()
        direction = {"GT": "LT", "GE": "LE"}[direction]
    first, last = bounds
    if first is None or last is None or direction not in ("LT", "LE", "NE"):
        return None
    return max(0, last - first + (direction == "LE"))
