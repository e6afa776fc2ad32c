#!/usr/bin/env python3
"""Translates PTX, as nvcc writes it, into C that runs on tests/ptx/ptx_run.h.

    translate.py kernels.ptx kernels.c

One C function for each .entry: registers are locals, branches are gotos, an instruction is a call
of ptx_ops.h or ptx_run.h with its PTX line. What is not known here is an error that names it. Not
known are functions that are not inlined (.func, call), textures, barriers other than 0, and
whatever else our kernels do not use.
"""
import os
import re
import sys

from instructions import Instructions
from operands import C_TYPE, SIZE, Unknown, c_name, label_name, register_name, split

# A register that was never written shows: as no sensible index, and as NaN.
UNWRITTEN = {"pred": "0", "b16": "0xdead", "b32": "0xdeadbeefu", "b64": "0xdeadbeefdeadbeefu",
             "f32": "NAN", "f64": "NAN"}  # fmt: skip


def names_of(declared):
    """The names that "%r<4>" or "%SP" declares."""
    m = re.fullmatch(r"(%\w+)<(\d+)>", declared)
    return [f"{m[1]}{i}" for i in range(int(m[2]))] if m else [declared]


class Variable:
    def __init__(self, space, align, kind, name, count, values):
        self.space, self.align, self.kind, self.name = space, align, kind, name
        self.count, self.values = count, values

    @property
    def size(self):
        return self.count * SIZE[self.kind]


def parse_variable(text):
    """.shared .align 4 .b8 name[32] and the like, or None."""
    m = re.fullmatch(
        r"(?:\.(?:visible|weak|extern)\s+)*\.(shared|local|global|const|param)\s+"
        r"(?:\.align\s+(\d+)\s+)?\.([subf]\d+)\s+([\w$]+)(\[\d*\])?(?:\s*=\s*\{?([^}]*)\}?)?",
        text,
    )
    if not m:
        return None
    count = 1 if m[5] is None else int(m[5][1:-1] or 0)
    align = int(m[2]) if m[2] else SIZE[m[3]]
    return Variable(m[1], align, m[3], m[4], count, m[6])


class Entry(Instructions):
    """One kernel on its way to a C function."""

    def statement(self, text):
        if text.startswith("."):
            return self.directive(text)
        m = re.fullmatch(r"(?:@(!?)(%?\w+)\s+)?([\w.:]+)\s*(.*)", text, re.S)
        if not m:
            raise Unknown(text)
        code = self.translate(m[3], split(m[4]))
        guard = f"if ({m[1]}{self.read(m[2], 'pred')}) " if m[2] else ""
        self.code.append(f"    {guard}{{ {code} }}")

    def directive(self, text):
        if text.startswith(".reg"):
            _, kind, declared = text.split(None, 2)
            kind = kind[1:]
            for d in declared.split(","):
                for name in names_of(d.strip()):
                    # Scopes may share a name, for no value outlives one.
                    if name in self.kinds and not (self.depth and name in self.inner):
                        raise Unknown(f"a second register {name}")
                    if self.kinds.setdefault(name, kind) != kind:
                        raise Unknown(f"register {name} of two types")
                    if self.depth:
                        self.inner.add(name)
        elif text.startswith((".shared", ".local")):
            v = parse_variable(text)
            if not v:
                raise Unknown(text)
            if v.space == "shared":
                self.place_shared(v)
            else:
                at = (self.local_bytes + v.align - 1) // v.align * v.align
                self.local[v.name], self.local_bytes = at, at + v.size
        elif not text.startswith((".loc", ".pragma")):
            raise Unknown(text)

    def c_code(self):
        out = [f"static void k_{self.name}(const PtxThread *t)", "{"]
        out.append(f"    _Alignas(16) unsigned char local[{max(self.local_bytes, 1)}];")
        out.append("    (void)t, (void)local;")
        by_kind = {}
        for name, kind in self.kinds.items():
            by_kind.setdefault(kind, []).append(register_name(name))
        for kind, names in by_kind.items():
            # Unsigned, whatever the instructions make of them.
            kind_ = kind if kind in UNWRITTEN else "b" + kind[1:]
            for name in names:
                out.append(f"    {C_TYPE[kind_]} {name} = {UNWRITTEN[kind_]};")
        # As ptxas does: what the block has of its own ends where dynamic memory may begin.
        align = self.dynamic_align
        self.shared_bytes = (self.shared_bytes + align - 1) // align * align
        out += [line.replace("DYNAMIC", str(self.shared_bytes)) for line in self.code]
        return out + ["}", ""]


class Module:
    def __init__(self, file):
        self.file, self.name = file, os.path.basename(file).split(".")[0]
        self.variables, self.entries = {}, []
        with open(file) as f:
            self.lines = [line.split("//")[0].strip() for line in f]

    def parse(self):
        i = 0
        while i < len(self.lines):
            line = self.lines[i]
            if re.match(r"(\.visible\s+|\.weak\s+)*\.entry", line):
                i = self.parse_entry(i)
            elif line.startswith(".section"):
                while not self.lines[i].endswith("}"):
                    i += 1
            elif re.match(r"(\.(visible|weak|extern)\s+)*\.(shared|global|const)\b", line):
                v = parse_variable(line.rstrip(";"))
                if not v or v.space == "const":
                    raise Unknown(f"{self.file}:{i + 1}: {line}")
                self.variables[v.name] = v
            elif line and not re.match(r"\.(version|target|address_size|file)\b", line):
                raise Unknown(f"{self.file}:{i + 1}: {line}")
            i += 1

    def parse_entry(self, i):
        """From its first line to its last, whose number is the result."""
        head = ""
        while self.lines[i] != "{":
            head += self.lines[i] + " "
            i += 1
        m = re.match(r"(?:\.visible\s+|\.weak\s+)*\.entry\s+([\w$]+)\s*\((.*?)\)(.*)", head)
        params = [parse_variable(p) for p in split(m[2])]
        if None in params:
            raise Unknown(f"{self.file}:{i}: {head}")
        e = Entry(self, m[1], params)
        for d in re.findall(r"\.(\w+) ([\d, ]+)", m[3]):
            if d[0] == "maxntid":
                x, y, z = (int(n) for n in (d[1].replace(" ", "") + ",1,1").split(",")[:3])
                e.max_threads = x * y * z
            elif d[0] != "minnctapersm":
                raise Unknown(f"{self.file}:{i}: .{d[0]}")
        while self.lines[i + 1] != "}" or e.depth:
            i += 1
            e.line = i + 1
            try:
                self.parse_line(e, self.lines[i])
            except (Unknown, KeyError, ValueError) as err:
                raise Unknown(f"{self.file}:{i + 1}: {self.lines[i]}: {err}") from err
        self.entries.append(e)
        return i + 1

    def parse_line(self, e, line):
        m = re.fullmatch(r"(\$?[\w$]+):", line)
        if m:
            e.code.append(f"{label_name(m[1])}:;")
            return
        if line in ("{", "}"):
            e.depth += 1 if line == "{" else -1
            return
        if line.startswith("{") and line.endswith("}"):  # an inline piece of ours or cuda_fp16.hpp
            self.parse_line(e, "{")
            self.parse_line(e, line[1:-1].strip())
            return self.parse_line(e, "}")
        if line.startswith("{ "):  # a scope of a few lines: a shared variable's address
            self.parse_line(e, "{")
            return self.parse_line(e, line[2:])
        if line.endswith(" }"):
            self.parse_line(e, line[:-2])
            return self.parse_line(e, "}")
        if line and not line.endswith(";") and not line.startswith(".loc"):
            raise Unknown("a statement over several lines")
        for text in line.split(";"):
            if text.strip():
                e.statement(text.strip())

    def c_code(self):
        out = ['#include "tests/ptx/ptx_run.h"', ""]
        variables, listed = [v for v in self.variables.values() if v.space == "global"], []
        for v in variables:
            values = f" = {{{v.values}}}" if v.values else ""
            name = f"v_{c_name(v.name)}"
            listed.append(f"{{{name}, sizeof {name}}}")
            out.append(f"static _Alignas(16) {C_TYPE[v.kind]} {name}[{v.count}]{values};")
        out.append(f"static const PtxVariable variable[] = {{{', '.join(listed) or '{0, 0}'}}};")
        for e in self.entries:
            out += [""] + e.c_code()
            params = ", ".join(f"{{{p.size}, {p.align}}}" for p in e.params)
            out.append(f"static const PtxParam p_{e.name}[] = {{{params or '{0, 1}'}}};")
        out += ["", "static const PtxEntry entry[] = {"]
        for e in self.entries:
            what = [f'"{self.name}"', f'"{e.name}"', f'"{self.file}"', f"k_{e.name}", f"p_{e.name}"]
            what += [len(e.params), e.shared_bytes, e.max_threads, "variable", len(variables)]
            what += [e.wgmma]
            out.append(f"    {{{', '.join(str(w) for w in what)}}},")
        out += ["};", "", "__attribute__((constructor)) static void list(void)", "{"]
        out += ["    ptx_register(entry, sizeof entry / sizeof *entry);", "}", ""]
        return "\n".join(out)


def main():
    module = Module(sys.argv[1])
    try:
        module.parse()
    except Unknown as err:
        sys.exit(f"translate.py: unknown: {err}")
    with open(sys.argv[2], "w") as f:
        f.write(module.c_code())


if __name__ == "__main__":
    main()
