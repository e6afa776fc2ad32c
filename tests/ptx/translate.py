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

C_TYPE = {
    "u8": "uint8_t", "s8": "int8_t", "b8": "uint8_t",
    "u16": "uint16_t", "s16": "int16_t", "b16": "uint16_t",
    "u32": "uint32_t", "s32": "int32_t", "b32": "uint32_t",
    "u64": "uint64_t", "s64": "int64_t", "b64": "uint64_t",
    "f32": "float", "f64": "double", "pred": "int",
    "f16": "uint16_t", "bf16": "uint16_t",
}  # fmt: skip
SIZE = {name: int(re.sub(r"\D", "", name)) // 8 for name in C_TYPE if name != "pred"}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
# A register that was never written shows: as no sensible index, and as NaN.
UNWRITTEN = {"pred": "0", "b16": "0xdead", "b32": "0xdeadbeefu", "b64": "0xdeadbeefdeadbeefu",
             "f32": "NAN", "f64": "NAN"}  # fmt: skip
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
PLACE = {"tid": "simt_thread_idx", "ctaid": "simt_block_idx",
         "ntid": "simt_block_dim", "nctaid": "simt_grid_dim"}  # fmt: skip
OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


class Unknown(Exception):
    """Something of PTX that is not translated."""


def is_float(kind):
    return kind in ("f32", "f64")


def names_of(declared):
    """The names that "%r<4>" or "%SP" declares."""
    m = re.fullmatch(r"(%\w+)<(\d+)>", declared)
    return [f"{m[1]}{i}" for i in range(int(m[2]))] if m else [declared]


def split(text):
    """Operands, at the commas outside of braces and brackets."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    return parts + [part.strip()] if part.strip() else parts


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


class Entry:
    """One kernel on its way to a C function."""

    def __init__(self, module, name, params):
        self.module, self.name, self.params = module, name, params
        self.kinds = {}  # of registers
        self.shared, self.shared_bytes = {}, 0
        self.local, self.local_bytes = {}, 0
        self.max_threads = 1024
        self.wgmma = 0
        self.code = []
        self.line = 0
        self.depth, self.inner = 0, set()  # of scopes; what registers they declare
        self.param_at, at = {}, 0
        for p in params:
            at = (at + p.align - 1) // p.align * p.align
            self.param_at[p.name] = at
            at += p.size

    def place_shared(self, v):
        """One of the kernel's own, or of the module's that it is the next to name."""
        at = (self.shared_bytes + v.align - 1) // v.align * v.align
        self.shared[v.name], self.shared_bytes = at, at + v.size
        return at

    # ---- operands ----

    def symbol(self, name):
        """The value of a name: an address in its own space."""
        if name in self.shared:
            return str(self.shared[name])
        if name in self.local:
            return f"((uintptr_t)local + {self.local[name]})"
        if name in self.param_at:
            return f"((uintptr_t)t->param + {self.param_at[name]})"
        if name in self.module.variables:
            v = self.module.variables[name]
            if v.space == "shared":
                return str(self.place_shared(v)) if v.count else "DYNAMIC"
            return f"(uintptr_t)v_{c_name(name)}"
        raise Unknown(f"name '{name}'")

    def read(self, operand, kind):
        """A C expression of the type `kind`."""
        c = C_TYPE[kind]
        special = re.fullmatch(r"%(tid|ctaid|ntid|nctaid)\.([xyz])", operand)
        if special:
            return f"{PLACE[special[1]]}.{special[2]}"
        if operand == "%laneid":
            return "(uint32_t)simt_lane()"
        if operand.startswith("%"):
            have = self.kinds.get(operand)
            if have is None:
                raise Unknown(f"register {operand}")
            name = c_name(operand)
            if have == "pred" or kind == "pred":
                if have != kind:
                    raise Unknown(f"predicate {operand} as {kind}")
                return name
            if is_float(kind) and not is_float(have):
                return f"{kind}_of({name})"
            if is_float(have) and not is_float(kind):
                name = f"bits_{have}({name})"
            elif is_float(have) and have != kind:
                raise Unknown(f"{operand} as {kind}")
            return f"({c}){name}"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", operand):
            bits = f"0x{operand[2:]}u"
            return f"f32_of({bits})" if is_float(kind) else f"({c}){bits}"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", operand):
            bits = f"0x{operand[2:]}u"
            return f"f64_of({bits})" if is_float(kind) else f"({c}){bits}"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
            value = int(operand.rstrip("U"), 0)
            if kind == "pred":
                return str(value)
            return f"({c}){value & (1 << 64) - 1:#x}u"
        return f"({c}){self.symbol(operand)}"

    def write(self, operand, value, kind):
        """A C statement that gives a register a value of the type `kind`."""
        if operand == "_":
            return f"(void)({value});"
        have = self.kinds.get(operand)
        if have is None or (have == "pred") != (kind == "pred"):
            raise Unknown(f"{operand} as {kind}")
        if is_float(have) and not is_float(kind):
            value = f"{have}_of({value})"
        elif is_float(kind) and not is_float(have):
            value = f"bits_{kind}({value})"
        elif is_float(kind) and have != kind:
            raise Unknown(f"{operand} as {kind}")
        return f"{c_name(operand)} = {value};"

    def address(self, operand):
        """[register], [name], either with an offset."""
        m = re.fullmatch(r"\[([%\w$.]+)(?:\+(-?\d+))?\]", operand)
        if not m:
            raise Unknown(f"address {operand}")
        offset = int(m[2] or 0)
        if m[1].startswith("%"):  # an address of 32 bits wraps
            wide = C_TYPE[self.kinds[m[1]]]
            return f"(uint64_t)({wide})({c_name(m[1])} + ({wide}){offset})"
        base = m[1] if m[1].isdigit() else self.symbol(m[1])
        return f"(uint64_t){base} + {offset}"

    def memory(self, space, operand, size, access):
        """A pointer to checked memory. access: what for."""
        place = f"t, {self.address(operand)}, {size}, {self.line}"
        if space in ("global", "shared"):
            return f"ptx_{space}({place}, PTX_{access})"
        if space == "param":
            return f"ptx_param({place})"
        if space == "local":
            return f"ptx_local({place}, local, sizeof local)"
        if not space:
            return f"ptx_generic({place}, PTX_{access}, local, sizeof local)"
        raise Unknown(f"space .{space}")

    # ---- instructions ----

    def translate(self, op, operands):
        parts = op.split(".")
        method = getattr(self, "op_" + parts[0], None)
        if method is None:
            raise Unknown(f"instruction {op}")
        return method(op, parts[1:], operands)

    def call(self, function, kind, d, sources, kinds=None):
        args = ", ".join(self.read(s, k) for s, k in zip(sources, kinds or [kind] * len(sources)))
        return self.write(d, f"{function}({args})", kind)

    def op_mov(self, op, m, o):
        (kind,) = m
        if o[1].startswith("{"):
            low = split(o[1][1:-1])
            half = SIZE[kind] * 8 // len(low)
            c = C_TYPE[kind]
            parts = [f"({c}){self.read(x, f'b{half}')} << {i * half}" for i, x in enumerate(low)]
            return self.write(o[0], f"({c})({' | '.join(parts)})", kind)
        if o[0].startswith("{"):
            parts = split(o[0][1:-1])
            half = SIZE[kind] * 8 // len(parts)
            value = self.read(o[1], kind)
            sets = [
                self.write(d, f"({C_TYPE[f'b{half}']})(whole >> {i * half})", f"b{half}")
                for i, d in enumerate(parts)
            ]
            return f"{C_TYPE[kind]} whole = {value}; " + " ".join(sets)
        return self.write(o[0], self.read(o[1], kind), kind)

    def op_cvta(self, op, m, o):
        if m[-1] != "u64":
            raise Unknown(op)
        value = self.read(o[1], "u64")
        if "shared" in m:
            value = f"ptx_{'to' if m[0] == 'to' else 'from'}_shared(t, {value})"
        elif m[-2] not in ("global", "local", "param"):
            raise Unknown(op)
        return self.write(o[0], value, "u64")

    def op_bra(self, op, m, o):
        if m not in ([], ["uni"]):
            raise Unknown(op)
        return f"goto {label_name(o[0])};"

    def op_ret(self, op, m, o):
        if m not in ([], ["uni"]):
            raise Unknown(op)
        return "return;"

    op_exit = op_ret

    def memory_type(self, m):
        """Of a load or store: space, width of the vector, type, whether it is read-only."""
        space, width, constant = "", 1, False
        for x in m[:-1]:
            if x in ("global", "shared", "local", "param"):
                space = x
            elif x in ("v2", "v4"):
                width = int(x[1])
            elif x == "nc":
                constant = True
            elif x not in ("volatile", "relaxed", "cta", "gpu", "sys", "weak") and not re.fullmatch(
                r"(L1|L2)::\w+|c[agsvw]|wb|wt", x
            ):
                raise Unknown(f"modifier .{x}")
        return space, width, m[-1], constant

    def op_ld(self, op, m, o):
        space, width, kind, constant = self.memory_type(m)
        access = "CONSTANT" if constant else "LOAD"
        at = self.memory(space, o[1], width * SIZE[kind], access)
        targets = split(o[0][1:-1]) if width > 1 else [o[0]]
        if len(targets) != width:
            raise Unknown(op)
        if width == 1:
            return self.write(o[0], f"*(const {C_TYPE[kind]} *){at}", kind)
        sets = [self.write(d, f"from[{i}]", kind) for i, d in enumerate(targets)]
        return f"const {C_TYPE[kind]} *from = {at}; " + " ".join(sets)

    def op_st(self, op, m, o):
        space, width, kind, _ = self.memory_type(m)
        at = self.memory(space, o[0], width * SIZE[kind], "STORE")
        sources = split(o[1][1:-1]) if width > 1 else [o[1]]
        if len(sources) != width:
            raise Unknown(op)
        sets = [f"to[{i}] = {self.read(s, kind)};" for i, s in enumerate(sources)]
        return f"{C_TYPE[kind]} *to = {at}; " + " ".join(sets)

    def op_atom(self, op, m, o):
        access = "TICKET" if m[:2] == ["acq_rel", "gpu"] else "ATOMIC"
        m = [x for x in m if x not in ("relaxed", "acq_rel", "cta", "gpu", "sys")]
        space = m.pop(0) if m[0] in ("global", "shared") else ""
        what, kind = m
        at = self.memory(space, o[1], SIZE[kind], access)
        c, b = C_TYPE[kind], self.read(o[2], kind)
        new = {"add": f"was + {b}", "or": f"was | {b}", "and": f"was & {b}", "xor": f"was ^ {b}",
               "exch": b, "min": f"min_{kind}(was, {b})",
               "max": f"max_{kind}(was, {b})"}  # fmt: skip
        if what == "cas":
            value = f"was == {b} ? {self.read(o[3], kind)} : was"
        elif what in new and not is_float(kind):
            value = new[what]
        else:
            raise Unknown(op)
        return f"{c} *to = {at}, was = *to; *to = {value}; {self.write(o[0], 'was', kind)}"

    def op_red(self, op, m, o):
        return self.op_atom(op, m, ["_"] + o)

    def arithmetic(self, name, sign):
        def method(op, m, o):
            if len(m) == 1 and not is_float(m[0]):  # integers wrap
                wide = "uint64_t" if SIZE[m[0]] == 8 else "uint32_t"
                a, b = self.read(o[1], m[0]), self.read(o[2], m[0])
                return self.write(o[0], f"({C_TYPE[m[0]]})(({wide}){a} {sign} ({wide}){b})", m[0])
            if len(m) == 1 and is_float(m[0]):
                m = ["rn"] + m
            return self.float_call(name, op, m, o)

        return method

    def float_call(self, name, op, m, o):
        """name.rounding.type for what ptx_ops.h has."""
        if len(m) != 2 or not is_float(m[1]):
            raise Unknown(op)
        if m[0] != "rn" and op not in ("add.rz.f32", "fma.rm.f32"):
            raise Unknown(op)
        return self.call(f"{name}_{m[0]}_{m[1]}", m[1], o[0], o[1:])

    def op_add(self, op, m, o):
        return self.arithmetic("add", "+")(op, m, o)

    def op_sub(self, op, m, o):
        return self.arithmetic("sub", "-")(op, m, o)

    def op_fma(self, op, m, o):
        return self.float_call("fma", op, m, o)

    def op_mul(self, op, m, o):
        if is_float(m[-1]):
            return self.float_call("mul", op, m if len(m) == 2 else ["rn"] + m, o)
        how, kind = m
        if how == "hi":
            return self.call(f"mul_hi_{kind}", kind, o[0], o[1:])
        result, value = self.product(op, how, kind, o)
        return self.write(o[0], value, result)

    def product(self, op, how, kind, o):
        result = WIDER[kind] if how == "wide" else kind
        if how not in ("lo", "wide"):
            raise Unknown(op)
        wide = "uint64_t" if SIZE[result] == 8 else "uint32_t"
        a, b = (f"({wide})({C_TYPE[result]}){self.read(x, kind)}" for x in o[1:3])
        return result, f"({C_TYPE[result]})({a} * {b})"

    def op_mad(self, op, m, o):
        result, value = self.product(op, m[0], m[1], o)
        wide = "uint64_t" if SIZE[result] == 8 else "uint32_t"
        value = f"({C_TYPE[result]})(({wide}){value} + ({wide}){self.read(o[3], result)})"
        return self.write(o[0], value, result)

    def op_div(self, op, m, o):
        if is_float(m[-1]):
            return self.float_call("div", op, m, o)
        (kind,) = m
        return self.call(f"div_{kind}", kind, o[0], o[1:])

    def op_rem(self, op, m, o):
        (kind,) = m
        return self.call(f"rem_{kind}", kind, o[0], o[1:])

    def two(self, name):
        def method(op, m, o):
            (kind,) = m
            return self.call(f"{name}_{kind}", kind, o[0], o[1:])

        return method

    def op_min(self, op, m, o):
        return self.two("min")(op, m, o)

    def op_max(self, op, m, o):
        return self.two("max")(op, m, o)

    def op_neg(self, op, m, o):
        (kind,) = m
        if is_float(kind):
            return self.call(f"neg_{kind}", kind, o[0], o[1:])
        unsigned = C_TYPE["u" + kind[1:]]
        return self.write(o[0], f"({C_TYPE[kind]})(0 - ({unsigned}){self.read(o[1], kind)})", kind)

    def op_abs(self, op, m, o):
        (kind,) = m
        if is_float(kind):
            return self.call(f"abs_{kind}", kind, o[0], o[1:])
        a, unsigned = self.read(o[1], kind), C_TYPE["u" + kind[1:]]
        return self.write(o[0], f"{a} < 0 ? ({C_TYPE[kind]})(0 - ({unsigned}){a}) : {a}", kind)

    def bitwise(self, sign, m, o):
        (kind,) = m
        a, b = self.read(o[1], kind), self.read(o[2], kind)
        return self.write(o[0], f"({C_TYPE[kind]})({a} {sign} {b})", kind)

    def op_and(self, op, m, o):
        return self.bitwise("&", m, o)

    def op_or(self, op, m, o):
        return self.bitwise("|", m, o)

    def op_xor(self, op, m, o):
        return self.bitwise("^", m, o)

    def op_not(self, op, m, o):
        (kind,) = m
        sign = "!" if kind == "pred" else "~"
        return self.write(o[0], f"({C_TYPE[kind]}){sign}{self.read(o[1], kind)}", kind)

    def op_shl(self, op, m, o):
        (kind,) = m
        return self.call(f"shl_{kind}", kind, o[0], o[1:], [kind, "u32"])

    def op_shr(self, op, m, o):
        (kind,) = m
        return self.call(f"shr_{kind}", kind, o[0], o[1:], [kind, "u32"])

    def op_shf(self, op, m, o):
        return self.call(f"shf_{m[0]}_{m[1]}_b32", "b32", o[0], o[1:])

    def op_lop3(self, op, m, o):
        if m != ["b32"]:
            raise Unknown(op)
        return self.call("lop3_b32", "b32", o[0], o[1:])

    def op_popc(self, op, m, o):
        return self.write(o[0], f"popc_{m[0]}({self.read(o[1], m[0])})", "u32")

    def op_clz(self, op, m, o):
        return self.write(o[0], f"clz_{m[0]}({self.read(o[1], m[0])})", "u32")

    def op_brev(self, op, m, o):
        return self.call(f"brev_{m[0]}", m[0], o[0], o[1:])

    def op_bfind(self, op, m, o):
        name = "_".join(["bfind"] + m)
        if name not in ("bfind_u32", "bfind_shiftamt_u32", "bfind_u64"):
            raise Unknown(op)
        return self.write(o[0], f"{name}({self.read(o[1], m[-1])})", "u32")

    def op_bfi(self, op, m, o):
        (kind,) = m
        return self.call(f"bfi_{kind}", kind, o[0], o[1:], [kind, kind, "u32", "u32"])

    def op_bfe(self, op, m, o):
        (kind,) = m
        return self.call(f"bfe_{kind}", kind, o[0], o[1:], [kind, "u32", "u32"])

    def op_prmt(self, op, m, o):
        if m != ["b32"]:
            raise Unknown(op)
        return self.call("prmt_b32", "b32", o[0], o[1:])

    def op_selp(self, op, m, o):
        (kind,) = m
        a, b, p = self.read(o[1], kind), self.read(o[2], kind), self.read(o[3], "pred")
        return self.write(o[0], f"{p} ? {a} : {b}", kind)

    def op_setp(self, op, m, o):
        compare, kind = m[0], m[-1]
        a, b = self.read(o[1], kind), self.read(o[2], kind)
        if is_float(kind):
            if compare in ("num", "nan", "ne"):
                value = f"setp_{compare}_{kind}({a}, {b})"
            elif compare in OPPOSITE:
                other = OPPOSITE[compare]
                value = f"!({a} {COMPARE[other]} {b})"
                if other == "ne":
                    value = f"!setp_ne_{kind}({a}, {b})"
            else:
                value = f"{a} {COMPARE[compare]} {b}"
        else:
            value = f"{a} {COMPARE[compare]} {b}"
        if len(m) == 3:  # and something else
            sign = {"and": "&", "or": "|", "xor": "^"}[m[1]]
            value = f"({value}) {sign} {self.read(o[3], 'pred')}"
        if "|" in o[0]:
            raise Unknown(op)
        return self.write(o[0], value, "pred")

    def op_cvt(self, op, m, o):
        whole = {
            "rn.bf16x2.f32": ("f32", "b32"), "rn.f16x2.f32": ("f32", "b32"),
            "rn.f16x2.e4m3x2": ("b16", "b32"), "rn.bf16.f32": ("f32", "b16"),
            "rn.satfinite.e4m3x2.f32": ("f32", "b16"), "rn.f16.f32": ("f32", "b16"), "f32.f16": ("b16", "f32"), "f32.bf16": ("b16", "f32"),
        }  # fmt: skip
        name = ".".join(m)
        if name in whole:
            source, kind = whole[name]
            return self.call("cvt_" + "_".join(m), kind, o[0], o[1:], [source] * len(o[1:]))
        to, of = m[-2:]
        how = m[:-2]
        a = self.read(o[1], of)
        if is_float(to) and is_float(of):
            value = f"({C_TYPE[to]}){a}"
            if how and how[0] in ("rni", "rzi", "rmi", "rpi"):
                if to != of:
                    raise Unknown(op)
                value = f"round_{how.pop(0)}_{to}({a})"
            elif how == ["rn"] and SIZE[to] < SIZE[of]:
                how = []
            if how == ["sat"]:
                how, value = [], f"sat_{to}({value})"
            value = f"one_nan_{to}({value})"
        elif is_float(to):  # to nearest, as C does where nobody asked for else
            if how != ["rn"]:
                raise Unknown(op)
            how, value = [], f"({C_TYPE[to]}){a}"
        elif is_float(of):
            if to not in ("s32", "u32", "s64", "u64") or len(how) != 1:
                raise Unknown(op)
            value = f"to_{to}_{of}(round_{how.pop()}_{of}({a}))"
        else:
            value = f"({C_TYPE[to]}){a}"
        if how:
            raise Unknown(op)
        return self.write(o[0], value, to)

    def approximate(self, op, m, o):
        name = "_".join(op.split("."))
        known = ("ex2_approx_f32", "ex2_approx_ftz_f32", "lg2_approx_f32", "rcp_approx_f32",
                 "sqrt_approx_f32", "rsqrt_approx_f32", "sin_approx_f32", "cos_approx_f32",
                 "rcp_approx_ftz_f64")  # fmt: skip
        if name not in known:
            raise Unknown(op)
        return self.call(name, m[-1], o[0], o[1:])

    op_ex2 = op_lg2 = op_rsqrt = op_sin = op_cos = approximate

    def op_rcp(self, op, m, o):
        return self.approximate(op, m, o) if m[0] == "approx" else self.float_call("rcp", op, m, o)

    def op_sqrt(self, op, m, o):
        return self.approximate(op, m, o) if m[0] == "approx" else self.float_call("sqrt", op, m, o)

    def op_shfl(self, op, m, o):
        if m[0] != "sync" or m[2] != "b32":
            raise Unknown(op)
        d, _, p = o[0].partition("|")
        b, c, mask = (self.read(x, "b32") for x in o[2:5])
        a, mode = self.read(o[1], "b32"), m[1][0]
        value = f"ptx_shfl(t, {self.line}, '{mode}', {a}, {b}, {c}, {mask}, &in_range)"
        after = self.write(p, "in_range", "pred") if p else "(void)in_range;"
        return f"int in_range; {self.write(d, value, 'b32')} {after}"

    def op_vote(self, op, m, o):
        if m != ["sync", "ballot", "b32"]:
            raise Unknown(op)
        value = f"ptx_ballot(t, {self.line}, {self.read(o[1], 'pred')}, {self.read(o[2], 'b32')})"
        return self.write(o[0], value, "b32")

    def op_redux(self, op, m, o):
        if m not in (["sync", "max", "u32"], ["sync", "min", "u32"]):
            raise Unknown(op)
        args = f"{self.read(o[1], 'u32')}, {self.read(o[2], 'b32')}"
        return self.write(o[0], f"ptx_redux_{m[1]}(t, {self.line}, {args})", "u32")

    def op_bar(self, op, m, o):
        if m == ["warp", "sync"]:
            return f"ptx_warp_sync(t, {self.line}, {self.read(o[0], 'b32')});"
        if m != ["sync"] or len(o) != 1:
            raise Unknown(op)
        return f"ptx_block_sync(t, {self.line}, {self.read(o[0], 'b32')});"

    def op_membar(self, op, m, o):
        return ";"  # threads run one by one, in order

    def op_fence(self, op, m, o):
        if m[0] == "proxy":
            if m != ["proxy", "async", "shared::cta"]:
                raise Unknown(op)
            return "ptx_show_shared();"
        return self.op_membar(op, m, o)

    def op_cp(self, op, m, o):
        name = ".".join(m)
        if name == "async.commit_group":
            return "ptx_copies_commit();"
        if name == "async.wait_group":
            return f"ptx_copies_wait(t, {self.line}, {self.read(o[0], 'u32')});"
        if name == "async.wait_all":
            return f"ptx_copies_commit(); ptx_copies_wait(t, {self.line}, 0);"
        if name == "async.bulk.prefetch.L2.global" and len(o) == 2:
            return f"ptx_prefetch(t, {self.line}, {self.address(o[0])}, {self.read(o[1], 'u32')});"
        sizes = {"async.cg.shared.global": ["16"], "async.ca.shared.global": ["4", "8", "16"]}
        if len(o) != 3 or o[2] not in sizes.get(name, []):
            raise Unknown(op)
        return f"ptx_copy(t, {self.line}, {self.address(o[0])}, {self.address(o[1])}, {o[2]});"

    def op_griddepcontrol(self, op, m, o):
        return {"wait": "ptx_grid_wait(t);", "launch_dependents": "ptx_launch_dependents();"}[m[0]]

    def op_mma(self, op, m, o):
        types = {"f32.bf16.bf16.f32": "bf16", "f32.f16.f16.f32": "f16"}
        shape, kind = ".".join(m[:5]), types.get(".".join(m[5:]))
        if shape != "sync.aligned.m16n8k16.row.col" or not kind:
            raise Unknown(op)
        d, a, b, c = (split(x[1:-1]) for x in o)
        if [len(x) for x in (d, a, b, c)] != [4, 4, 2, 4]:
            raise Unknown(op)
        args = [self.read(x, "b32") for x in a + b] + [self.read(x, "f32") for x in c]
        sets = [self.write(x, f"d.x[{i}]", "f32") for i, x in enumerate(d)]
        return f"PtxFour d = ptx_mma_{kind}(t, {self.line}, {', '.join(args)}); " + " ".join(sets)

    def op_wgmma(self, op, m, o):
        name = ".".join(m)
        self.wgmma = 1
        if name == "fence.sync.aligned":
            return f"ptx_wgmma_fence(t, {self.line});"
        if name == "commit_group.sync.aligned":
            return f"ptx_wgmma_commit(t, {self.line});"
        if name == "wait_group.sync.aligned":
            return f"ptx_wgmma_wait(t, {self.line}, {self.read(o[0], 'u32')});"
        shape = r"mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.\2"
        known = re.fullmatch(shape, name)
        if not known:
            raise Unknown(op)
        n, kind, d = int(known[1]), "PTX_" + known[2].upper(), split(o[0][1:-1])
        b, adds = self.read(o[2], "u64"), self.read(o[3], "pred")
        if n % 8 or not 8 <= n <= 256 or len(d) != n // 2:
            raise Unknown(op)
        # Neither operand is negated. A in shared memory lies along k, so does B but for n = 64.
        if o[1].startswith("{"):
            a, transposed = split(o[1][1:-1]), o[4:] == ["1", "1", "1"]
            if len(a) != 4 or not (o[4:] == ["1", "1", "0"] or transposed and n == 64):
                raise Unknown(op)
            words = ", ".join(self.read(x, "b32") for x in a)
            what, args = "registers", f"(uint32_t[]){{{words}}}, {b}, {int(transposed)}"
        else:
            if o[4:] != ["1", "1", "0", "0"]:
                raise Unknown(op)
            what, args = "shared", f"{self.read(o[1], 'u64')}, {b}"
        start = ", ".join(self.read(x, "f32") for x in d)
        sets = [self.write(x, f"d[{i}]", "f32") for i, x in enumerate(d)]
        call = f"ptx_wgmma_{what}(t, {self.line}, {kind}, {n}, d, {args}, {adds});"
        return f"float d[{n // 2}] = {{{start}}}; {call} " + " ".join(sets)

    # ---- statements ----

    def statement(self, text):
        if text.startswith("."):
            return self.directive(text)
        m = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*)", text, re.S)
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
            by_kind.setdefault(kind, []).append(c_name(name))
        for kind, names in by_kind.items():
            # Unsigned, whatever the instructions make of them.
            kind_ = kind if kind in UNWRITTEN else "b" + kind[1:]
            for name in names:
                out.append(f"    {C_TYPE[kind_]} {name} = {UNWRITTEN[kind_]};")
        dynamic = (self.shared_bytes + 15) // 16 * 16
        out += [line.replace("DYNAMIC", str(dynamic)) for line in self.code]
        return out + ["}", ""]


def c_name(name):
    return name.lstrip("%").replace("$", "_S_").replace(".", "_")


def label_name(label):
    return "L" + c_name(label)


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
