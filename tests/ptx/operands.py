"""What PTX's operands are in C: registers, numbers, addresses."""
import re

C_TYPE = {
    "u8": "uint8_t", "s8": "int8_t", "b8": "uint8_t",
    "u16": "uint16_t", "s16": "int16_t", "b16": "uint16_t",
    "u32": "uint32_t", "s32": "int32_t", "b32": "uint32_t",
    "u64": "uint64_t", "s64": "int64_t", "b64": "uint64_t",
    "f32": "float", "f64": "double", "pred": "int",
    "f16": "uint16_t", "bf16": "uint16_t",
}  # fmt: skip
SIZE = {name: int(re.sub(r"\D", "", name)) // 8 for name in C_TYPE if name != "pred"}
PLACE = {"tid": "simt_thread_idx", "ctaid": "simt_block_idx",
         "ntid": "simt_block_dim", "nctaid": "simt_grid_dim"}  # fmt: skip


class Unknown(Exception):
    """Something of PTX that is not translated."""


def is_float(kind):
    return kind in ("f32", "f64")


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


def c_name(name):
    return name.lstrip("%").replace("$", "_S_").replace(".", "_")


def register_name(name):
    """Inline pieces may leave out the %; their r0 is not %r0."""
    return c_name(name) if name.startswith("%") else f"own_{name}"


def label_name(label):
    return "L" + c_name(label)


class Operands:
    """One kernel: what its names stand for."""

    def __init__(self, module, name, params):
        self.module, self.name, self.params = module, name, params
        self.kinds = {}  # of registers
        self.shared, self.shared_bytes = {}, 0
        self.local, self.local_bytes = {}, 0
        self.max_threads = 1024
        self.wgmma = 0
        self.dynamic_align = 16
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
                if v.count:
                    return str(self.place_shared(v))
                self.dynamic_align = max(self.dynamic_align, v.align)
                return "DYNAMIC"
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
        if operand.startswith("%") or operand in self.kinds:
            have = self.kinds.get(operand)
            if have is None:
                raise Unknown(f"register {operand}")
            name = register_name(operand)
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
        return f"{register_name(operand)} = {value};"

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
