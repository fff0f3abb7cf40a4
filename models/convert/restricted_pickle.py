"""Reads torch.save archives (.bin, .pt) without torch and without running anything from them.

A pickle names globals and calls them. Here each of the few globals in _ALLOWED is replaced by our
own object; any other is refused by name or (keep_unknown=True, for training checkpoints, whose
optimizer and loader states hold arbitrary classes) becomes an Inert class: nothing is imported,
calling it stores nothing, and it is refused in place of a tensor. Tensors stay lazy.
Read source_tensor.py next.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.convert.refusal import Refusal
from models.convert.safetensors_io import reject_pointer
from models.convert.source_tensor import NUMPY_TYPES, SourceTensor

MAX_PICKLE_BYTES = 512 << 20
LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # torch < 1.6: a pickled long

_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
# Useless in a checkpoint: refused even where unknown globals are kept as Inert.
_HOSTILE_MODULES = frozenset(
    "os posix nt subprocess pty socket shutil runpy importlib ctypes sys signal "
    "webbrowser commands multiprocessing code codeop pickle _pickle marshal imp".split()
)
_HOSTILE_BUILTINS = frozenset("eval exec compile open input breakpoint __import__".split())


class StateDict(dict[Any, Any]):
    """Stands for collections.OrderedDict. The attributes that torch sets on it are dropped."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Ignores the state (`_metadata`)."""


class Inert:
    """A value of a class that was not loaded. Accepts any operation of a pickle and keeps nothing.

    Subclasses, one per global, carry its name as `origin`.
    """

    __slots__ = ()
    origin = "?"

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        """Ignores the arguments."""
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Ignores the arguments."""

    def __setstate__(self, state: Any) -> None:
        """Ignores the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignores the item."""

    def append(self, item: Any) -> None:
        """Ignores the item."""

    def extend(self, items: Any) -> None:
        """Ignores the items."""

    def add(self, item: Any) -> None:
        """Ignores the item."""


@dataclass(frozen=True)
class StorageType:
    """Stands for a torch storage class; it cannot be called."""

    dtype: str

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a storage class has no state")


@dataclass(frozen=True)
class Storage:
    """A storage of `count` elements in the archive's member data/`key`."""

    dtype: str
    key: str
    count: int

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a storage has no state")


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a storage, as the pickle gives it; TorchArchive.tensor checks it."""

    storage: Storage
    offset: Any
    shape: Any
    strides: Any

    def __setstate__(self, state: Any) -> None:
        """Ignores attributes that were set on the tensor."""


class _Callable:
    """A replacement function. It has no attributes that a pickle could set."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError("functions have no state")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("functions have no state")


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Any:
    """Stands for torch._utils._rebuild_tensor_v2; `rest` is requires_grad, hooks, metadata."""
    if isinstance(storage, Inert):
        return storage
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    if len(rest) > 2 and rest[2]:
        raise pickle.UnpicklingError("a tensor with a conjugate or negative view is not supported")
    return TensorRef(storage, offset, shape, strides)


def _rebuild_parameter(data: Any, *rest: Any) -> Any:
    """Stands for torch._utils._rebuild_parameter: a parameter is its tensor."""
    return data


def _make_dict(items: Any = ()) -> StateDict:
    """Stands for collections.OrderedDict(items)."""
    return StateDict(items)


def _make_size(items: Any = ()) -> tuple[Any, ...]:
    """Stands for torch.Size."""
    return tuple(items)


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _make_dict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch", "Size"): _make_size,
}


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that can reach nothing but the replacements above."""

    def __init__(self, data: bytes, what: str, keep_unknown: bool) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._what = what
        self._keep_unknown = keep_unknown
        self._inert: dict[str, type[Inert]] = {}

    @property
    def unknown_globals(self) -> list[str]:
        """Names of the globals that were replaced by Inert classes."""
        return sorted(self._inert)

    def find_class(self, module: str, name: str) -> Any:
        """Returns the replacement of a global. Never imports, never reads an attribute."""
        if (module, name) in _ALLOWED:
            return _Callable(_ALLOWED[module, name])
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return StorageType(_STORAGES[name])
        full = f"{module}.{name}"
        hostile = module.partition(".")[0] in _HOSTILE_MODULES or (
            module in ("builtins", "__builtin__") and name in _HOSTILE_BUILTINS
        )
        if hostile or not self._keep_unknown:
            raise Refusal(f"{self._what}: the pickle asks for {full}, which is not allowed")
        if full not in self._inert:
            self._inert[full] = type("Inert", (Inert,), {"__slots__": (), "origin": full})
        return self._inert[full]

    def persistent_load(self, pid: Any) -> Any:
        """Turns a storage's persistent id into a Storage."""
        well_formed = isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"
        if not well_formed:
            raise Refusal(f"{self._what}: an unknown persistent id")
        kind, key, count = pid[1], pid[2], pid[4]
        if isinstance(kind, type) and issubclass(kind, Inert):
            return kind()
        if not isinstance(kind, StorageType) or type(key) is not str or type(count) is not int:
            raise Refusal(f"{self._what}: a malformed storage")
        return Storage(kind.dtype, key, count)


def _check_opcodes(data: bytes, what: str) -> None:
    """Refuses malformed streams, and memo numbers that would make the unpickler allocate wildly."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            memo = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
            if memo and int(argument or 0) > len(data):
                raise Refusal(f"{what}: a memo number beyond the pickle's size")
    except Refusal:
        raise
    except Exception as error:  # genops raises many kinds on malformed input
        raise Refusal(f"{what}: not a valid pickle ({error})") from None


class TorchArchive:
    """One opened .bin or .pt file. `content` is its object; tensor() resolves the TensorRefs."""

    def __init__(self, path: Path, keep_unknown: bool = False) -> None:
        self.path = path
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._prefix = ""
        data = self._read_index()
        what = f"{path.name}: data.pkl"
        _check_opcodes(data, what)
        unpickler = RestrictedUnpickler(data, what, keep_unknown)
        try:
            self.content = unpickler.load()
        except Refusal:
            raise
        except Exception as error:  # a hostile stream can provoke any of them
            raise Refusal(f"{what}: not readable ({type(error).__name__}: {error})") from None
        self.unknown_globals = unpickler.unknown_globals

    def _read_index(self) -> bytes:
        """Lists the members, checks the byte order and returns data.pkl."""
        _check_zip(self.path)
        try:
            with zipfile.ZipFile(self.path) as archive:
                for info in archive.infolist():
                    if info.filename in self._members:
                        raise Refusal(f"{self.path.name}: member {info.filename} twice")
                    self._members[info.filename] = info
                pickles = [
                    n for n in self._members if n.count("/") == 1 and n.endswith("/data.pkl")
                ]
                if len(pickles) != 1:
                    raise Refusal(f"{self.path.name}: no data.pkl; not written by torch.save")
                self._prefix = pickles[0][: -len("data.pkl")]
                order = self._members.get(self._prefix + "byteorder")
                if order is not None and self._read(archive, order, 64).strip() != b"little":
                    raise Refusal(f"{self.path.name}: byteorder is not little")
                return self._read(archive, self._members[pickles[0]], MAX_PICKLE_BYTES)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise Refusal(f"{self.path.name}: damaged zip archive ({error})") from None

    def _read(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
        """Opens a member, which must not be compressed: no short file becomes a long text."""
        if member.compress_type != zipfile.ZIP_STORED:
            raise Refusal(f"{self.path.name}: member {member.filename} is compressed")
        if member.file_size > limit:
            raise Refusal(f"{self.path.name}: member {member.filename} is larger than {limit} B")
        return archive.read(member)

    def tensor(self, name: str, value: Any) -> SourceTensor:
        """Resolves `value`, found under `name`, into a checked tensor of this file."""
        if isinstance(value, Inert):
            raise Refusal(f"tensor {name}: holds {value.origin}, which is not loaded")
        if not isinstance(value, TensorRef):
            raise Refusal(f"tensor {name}: holds a {type(value).__name__}, not a tensor")
        storage = value.storage
        member = self._members.get(f"{self._prefix}data/{storage.key}")
        if member is None:
            raise Refusal(f"tensor {name}: storage data/{storage.key} is missing")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise Refusal(f"tensor {name}: storage data/{storage.key} is compressed or encrypted")
        if member.file_size != storage.count * NUMPY_TYPES[storage.dtype].itemsize:
            raise Refusal(f"tensor {name}: storage data/{storage.key} has the wrong size")
        if not isinstance(value.shape, tuple) or not isinstance(value.strides, tuple):
            raise Refusal(f"tensor {name}: shape, strides or offset are malformed")
        tensor = SourceTensor(
            name=name,
            dtype=storage.dtype,
            shape=value.shape,
            strides=value.strides,
            path=self.path,
            data_offset=self._data_offset(name, member),
            data_bytes=member.file_size,
            first_element=value.offset,
        )
        tensor.check()
        return tensor

    def _data_offset(self, name: str, member: zipfile.ZipInfo) -> int:
        """The offset of the member's bytes, which must lie within the file."""
        with open(self.path, "rb") as file:
            file.seek(member.header_offset)
            header = file.read(30)
            total = file.seek(0, io.SEEK_END)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise Refusal(f"tensor {name}: damaged zip member {member.filename}")
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        start: int = member.header_offset + 30 + name_length + extra_length
        if start + member.file_size > total:
            raise Refusal(f"tensor {name}: {self.path.name} is truncated")
        return start


def _check_zip(path: Path) -> None:
    """Raises Refusal, with the reason, if a file does not begin as a zip archive."""
    with open(path, "rb") as file:
        head = file.read(512)
    reject_pointer(path, head)
    if head.startswith(b"PK\x03\x04"):
        return
    if LEGACY_MAGIC in head[:32] or head[257:262] == b"ustar":
        raise Refusal(f"{path.name}: legacy format of torch before 1.6; load and save it again")
    raise Refusal(f"{path.name}: not a torch.save archive")
