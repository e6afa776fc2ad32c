"""What PTX's instructions are in C: a method each, by its first word."""
import re

from operands import C_TYPE, SIZE, Operands, Unknown, is_float, label_name, split

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


class Instructions(Operands):
    """That kernel: a C statement for each instruction."""

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
        access = "CONSTANT" if constant else "FRESH" if m[:2] == ["relaxed", "gpu"] else "LOAD"
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
        if len(o) not in (3, 4) or o[2] not in sizes.get(name, []):
            raise Unknown(op)
        read = self.read(o[3], "u32") if len(o) == 4 else o[2]
        places = f"{self.address(o[0])}, {self.address(o[1])}"
        return f"ptx_copy(t, {self.line}, {places}, {o[2]}, {read});"

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
