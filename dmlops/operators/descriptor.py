"""The base class of all descriptors: validation by feature level, inference of outputs, JSON."""

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

from dmlops.operators.support import INDEX_TYPES, SupportRow, SupportTable
from dmlops.types.arguments import Member, as_integer, check_dimensions, level_of, member_of
from dmlops.types.data_types import SUPPORTED, member_named
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import UnsupportedFeatureError, Words, counted, error_text, refuse, shown
from dmlops.types.opaque_types import ElementType, OpaqueType, type_name
from dmlops.types.scalars import scalar_bits
from dmlops.types.tensor import TensorDesc, tensor_for

INFERRED: Any = None
"""The default of outputs: a descriptor that is made has them all."""


class Objection(NamedTuple):
    """The reason why a feature level does not support a descriptor; it may begin with another field."""

    field: str
    got: object
    reason: str
    other: str = ""


class Descriptor:
    """Base class of the operator descriptors.

    A descriptor is checked when it is created, and outputs that are left out are inferred. Descriptors are
    equal if their fields are, floats by their bits.
    """

    __slots__ = ()

    support: ClassVar[SupportTable]
    words: ClassVar[Words]
    """The names by which error texts call the operator and its fields."""
    _by_name: ClassVar[dict[str, type["Descriptor"]]] = {}

    def __init_subclass__(cls) -> None:
        cls.words = Words(cls.__name__)
        if "support" in vars(cls):  # the others are base classes of operators
            Descriptor._by_name[cls.__name__] = cls

    # To write these methods anew for each class would take `dataclass` some 0.3 ms.
    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{field}={getattr(self, field)!r}' for field in self._fields())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        # As numbers, zeros of both signs are equal, and no NaN equals itself.
        values = [getattr(self, field) for field in self._fields()]
        return tuple([scalar_bits(v, TensorDataType.FLOAT64) if type(v) is float else v for v in values])

    @property
    def name(self) -> str:
        """The operator's name."""
        return type(self).__name__

    @classmethod
    def _fields(cls) -> list[str]:
        """Return the names of the fields, in their order."""
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]

    @property
    def tensors(self) -> dict[str, TensorDesc]:
        """The tensors that are present, by field name."""
        values = {name: getattr(self, name) for name in self._fields() if name.endswith("_tensor")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def inputs(self) -> dict[str, TensorDesc]:
        """The tensors that are read, by field name."""
        return {name: desc for name, desc in self.tensors.items() if not name.startswith("output_")}

    @property
    def outputs(self) -> dict[str, TensorDesc]:
        """The tensors that are written, by field name."""
        return {name: desc for name, desc in self.tensors.items() if name.startswith("output_")}

    @classmethod
    def of_inferred(cls, **values: object) -> Self:
        """Return a descriptor that need not check itself: its outputs were inferred from the other fields."""
        new = object.__new__(cls)
        for field, value in values.items():
            object.__setattr__(new, field, value)
        return new

    def _fields_of(self, form: type["Descriptor"]) -> dict[str, Any]:
        """Return the fields that this form of the operator and another one share."""
        return {name: getattr(self, name) for name in self._fields() if name in form._fields()}

    def _inferred_with(self, **changes: object) -> Self:
        """Return the descriptor with other values of some fields, which need no check."""
        return self.of_inferred(**self._fields_of(type(self)) | changes)

    def lower(self) -> "Descriptor":
        """Return the same computation in the newest form of the operator."""
        return self

    def parts(self, options: Any) -> "Sequence[tuple[Descriptor, Any]]":
        """Return the computations that kernels run, one after the other, for this one, with their `Options`.

        Elements wider than kernels know become several unsigned integers (`dmlops.types.opaque_types`). The
        tensors of computation number `i` begin at part `i` of those of this one.
        """
        return ((self, options),)

    def older_form(self) -> "Descriptor | None":
        """Return the same computation in the older form of the operator.

        Returns
        -------
        Descriptor or None
            None if the operator has no older form, or if that form cannot express the computation.

        Examples
        --------
        >>> from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
        >>> x = TensorDesc(TensorDataType.FLOAT32, (3, 4))
        >>> TopK1(input_tensor=x, axis=1, k=2, axis_direction=AxisDirection.DECREASING).older_form().name
        'TopK'
        >>> TopK1(input_tensor=x, axis=1, k=2, axis_direction=AxisDirection.INCREASING).older_form()
        """
        return None

    def padded(self, dimension_count: int) -> Self:
        """Return the same computation on tensors of `dimension_count` dimensions each.

        Tensors with fewer dimensions get leading dimensions of size 1.

        Raises
        ------
        InvalidDescriptorError
            If a tensor has more.
        """
        return self._padded(dimension_count)

    def _padded(self, dimension_count: int, **changes: object) -> Self:
        check_dimensions(f"{self.name}.padded", dimension_count)
        for name, desc in self.tensors.items():
            if desc.dimension_count > dimension_count:
                reason = f"it is to have {counted(dimension_count, 'dimension')}"
                allowed = "padding cannot remove dimensions"
                self._refuse(f"{name}.sizes", desc.sizes, reason, allowed)
            changes[name] = desc.with_leading_ones(dimension_count)
        return replace(self, **changes)  # type: ignore[type-var]

    def at_level(self, level: FeatureLevel | int | str) -> "Descriptor":
        """Return the same computation in the form that a feature level supports.

        This is the newest form of the operator that the level has and that can express the computation, with
        leading dimensions of size 1 if the level requires more dimensions.

        Parameters
        ----------
        level : FeatureLevel
            The member, its number or its name.

        Returns
        -------
        Descriptor
            The descriptor, whose tensors have the same elements at the same distances from each other.

        Raises
        ------
        UnsupportedFeatureError
            If no form of the operator supports the computation at that level. The message gives the reason
            and the lowest level that supports it.
        InvalidDescriptorError
            If there is no such level.

        Examples
        --------
        >>> from dmlops import NonzeroCoordinates, TensorDataType, TensorDesc
        >>> desc = NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, (2, 3)))
        >>> {name: tensor.sizes for name, tensor in desc.at_level("DML_3_0").outputs.items()}
        {'output_count_tensor': (1, 1, 1, 1), 'output_coordinates_tensor': (1, 1, 6, 2)}
        """
        return self.in_form_of(level_of(level, f"{self.name}.feature_level"))

    def in_form_of(self, level: FeatureLevel, words: Words | None = None) -> "Descriptor":
        """Return `at_level`; errors are in the words of a function, or else of the form itself."""
        form, objection = self._best_form(level)
        if objection is None:
            return form
        lowest = next((other for other in FeatureLevel if self._best_form(other)[1] is None), None)
        raise _unsupported(objection, lowest, words or form.words)

    def _best_form(self, level: FeatureLevel) -> "tuple[Descriptor, Objection | None]":
        """Return the newest form that the level supports, and None; or else the newest form, and why not."""
        refused = []
        newest = self.lower()
        for form in filter(None, (newest, newest.older_form())):
            fitted = form._fitted(level)
            objection = fitted._objection_at(level)
            if objection is None:
                return fitted, None
            refused.append((fitted, objection))
        return next((pair for pair in refused if pair[0].support.introduced <= level), refused[-1])

    def _fitted(self, level: FeatureLevel) -> Self:
        """Return the descriptor, padded if the level requires more dimensions."""
        row = self.support.at(level)
        if row is None or self._objection(row, level) is None:
            return self
        ranks = [desc.dimension_count for desc in self.tensors.values()]
        rank = max(*ranks, *(row.allowed(name).dims.low for name in self.tensors))
        return self if min(ranks) == rank else self.padded(rank)

    def minimum_feature_level(self) -> FeatureLevel:
        """Return the lowest feature level that supports this descriptor.

        Raises
        ------
        UnsupportedFeatureError
            If no level does.
        """
        level = self._lowest_level()
        if level is None:
            objection = self._objection(self.support.rows[-1], FeatureLevel.EXTENDED)
            raise _unsupported(objection, None, self.words)
        return level

    def validate(self, level: FeatureLevel | int | str) -> None:
        """Check that `level` supports this descriptor.

        Parameters
        ----------
        level : FeatureLevel
            The member, its number or its name.

        Raises
        ------
        UnsupportedFeatureError
            If it does not. The message gives the reason and the lowest level that does.
        InvalidDescriptorError
            If there is no such level.
        """
        objection = self._objection_at(level_of(level, f"{self.name}.feature_level"))
        if objection is not None:
            raise _unsupported(objection, self._lowest_level(), self.words)

    def to_json(self) -> str:
        """Return the descriptor as JSON text."""
        from dmlops.operators import descriptor_json  # noqa: PLC0415 - calls need no JSON

        return descriptor_json.written(self.name, {field: getattr(self, field) for field in self._fields()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the descriptor that `to_json` wrote.

        Parameters
        ----------
        text : str
            A JSON object with the name of the operator as ``operator``, and its fields. Enumerations are
            given by name or by number, and outputs that are left out are inferred, as when a descriptor is
            made.

        Raises
        ------
        InvalidDescriptorError
            If it is not such an object, its fields are not those of a descriptor, or a name is given twice;
            or if it describes another operator than that of the class, unless this is `Descriptor`.
        TypeError
            If `text` is not a string.
        """
        from dmlops.operators import descriptor_json  # noqa: PLC0415 - calls need no JSON

        data = descriptor_json.read(text)
        given = data.pop("operator", None)
        form: Any = Descriptor._by_name.get(given) if isinstance(given, str) else None
        if form is None:
            allowed = f"operator must be one of {', '.join(sorted(Descriptor._by_name))}"
            refuse("Descriptor.operator", shown(given), "no operator has that name", allowed)
        name: str = form.__name__
        if "support" in vars(cls) and form is not cls:  # TopK1 is a TopK, too
            reason, allowed = f"{cls.__name__}.from_json reads no other", "Descriptor.from_json reads all"
            refuse(f"{cls.__name__}.operator", shown(name), reason, allowed)
        known = {field.name: field for field in fields(form)}
        names = ", ".join(known)
        for key, field in known.items():
            if field.default is MISSING and key not in data:
                reason = "the operator needs it"
                refuse(f"{name}.{key}", "nothing", reason, f"the fields of {name} are {names}")
        for key in data:
            if key not in known:
                reason = f"{name} has none of that name"
                refuse(name, f"field {shown(key)}", reason, f"its fields are {names}")
        values = {key: descriptor_json.from_plain(f"{name}.{key}", value) for key, value in data.items()}
        return form(**values)  # type: ignore[no-any-return]

    def _lowest_level(self) -> FeatureLevel | None:
        return next((row.level for row in self.support if self._objection(row, row.level) is None), None)

    def _objection_at(self, level: FeatureLevel) -> Objection | None:
        row = self.support.at(level)
        if row is None:
            reason = f"the operator was introduced in {self.support.introduced.name}"
            return Objection("feature_level", level.name, reason)
        return self._objection(row, level)

    def _objection(self, row: SupportRow, level: FeatureLevel) -> Objection | None:
        """Return why the row that is in force at a level does not support the descriptor."""
        tensors = self.tensors
        for name, desc in tensors.items():
            allowed = row.allowed(name)
            if not allowed.dims.allow(desc.dimension_count):
                got = counted(desc.dimension_count, "dimension")
                return Objection(name, got, f"{level} takes {allowed.dims}")
            if desc.data_type not in allowed.types:
                types = ", ".join(sorted(map(type_name, allowed.types)))
                return Objection(name, type_name(desc.data_type), f"{level} takes {types}")
            if row.level < FeatureLevel.EXTENDED and desc.extended_reason is not None:
                return Objection(name, desc.sizes, f"{desc.extended_reason}, which DirectML does not take")
        (first, expected), *others = tensors.items()
        for name, desc in others:
            if row.equal_dims and desc.dimension_count != expected.dimension_count:
                got = counted(desc.dimension_count, "dimension")
                reason = f"has {expected.dimension_count}, and {level} wants as many in all tensors"
                return Objection(name, got, reason, first)
        return None

    def _refuse(self, field: str, got: object, reason: str, allowed: str) -> NoReturn:
        refuse(f"{self.name}.{field}", got, reason, allowed)

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _integer(self, field: str) -> int:
        """Store the field as a plain int, and return it."""
        got = getattr(self, field)
        value = as_integer(got)
        if value is None:
            self._refuse(field, shown(got), "it is not an integer", f"{field} must be an integer")
        self._set(field, value)
        return value

    def _member(self, field: str, enumeration: type[Member]) -> Member:
        """Store the field as a member of the enumeration, and return it."""
        got = getattr(self, field)
        member = member_of(enumeration, got)
        if member is None:
            allowed = f"{field} must be one of {', '.join(enumeration.__members__)}"
            self._refuse(field, shown(got), f"there is no such {enumeration.__name__}", allowed)
        self._set(field, member)
        return member

    def _data_type(self, field: str) -> TensorDataType:
        """Store the field as a data type, and return it."""
        got = getattr(self, field)
        member = member_named(got)
        if member is None:
            allowed = f"{field} must be one of {', '.join(SUPPORTED)}"
            self._refuse(field, shown(got), "there is no such data type", allowed)
        self._set(field, member)
        return member

    def _tensor(self, field: str) -> TensorDesc:
        got = getattr(self, field)
        if not isinstance(got, TensorDesc):
            self._refuse(field, shown(got), "it is not a tensor", f"{field} must be a TensorDesc")
        return got

    def _check_output(self, field: str, inferred: TensorDesc) -> TensorDesc:
        """Check an output that was given against the inferred one, or take that."""
        if getattr(self, field) is None:
            self._set(field, inferred)
            return inferred
        given = self._tensor(field)
        if given.sizes != inferred.sizes:
            reason = f"the inputs give {inferred.sizes}"
            self._refuse(f"{field}.sizes", given.sizes, reason, f"sizes must be {inferred.sizes}")
        check_strides(f"{self.name}.{field}.strides", given)
        return given

    def _same_type(self, field: str, other: str) -> None:
        got, expected = self._tensor(field).data_type, self._tensor(other).data_type
        if got != expected:
            name = type_name(expected)
            self._refuse(
                f"{field}.data_type", type_name(got), f"{other} is {name}", f"data_type must be {name}"
            )


def _unsupported(
    objection: Objection | None, lowest: FeatureLevel | None, words: Words
) -> UnsupportedFeatureError:
    field, got, reason, other = objection or Objection("feature_level", "none", "no level takes it")
    remedy = "no level supports it"
    if lowest is not None:
        remedy = f"the lowest level that supports it is {lowest}"
    if lowest is FeatureLevel.EXTENDED:
        remedy += ", dmlops' own above DirectML's"
    reason = f"{words[other]} {reason}" if other else reason
    return UnsupportedFeatureError(error_text(words.where(field), got, reason, remedy))


def result(where: str, data_type: ElementType, sizes: tuple[int, ...]) -> TensorDesc:
    """Return the description of a packed result; an error about its sizes begins with `where`."""
    return tensor_for(where, "TensorDesc.sizes", TensorDesc, data_type, sizes)


def check_strides(where: str, output: TensorDesc) -> None:
    """Refuse an output that may have several elements at one address."""
    if output.overlaps_itself:
        reason = f"sizes {output.sizes} then may share addresses"
        allowed = "the strides of an output must not overlap"
        got = output.effective_strides if where.endswith(".strides") else f"strides {output.strides}"
        refuse(where, got, reason, allowed)


def check_holds(where: str, data_type: ElementType, largest: int, what: str) -> None:
    """Refuse a type of an integer output that cannot hold the value `largest`."""
    if isinstance(data_type, OpaqueType) or data_type.is_float or data_type.bits == 0:
        allowed = "data_type must be an integer type"
        refuse(where, type_name(data_type), f"it holds {what}", allowed)
    if largest > data_type.integer_range[1]:
        reason, allowed = f"{what} reaches {largest}", f"data_type must hold {largest}"
        refuse(where, type_name(data_type), reason, allowed)


def check_index_type(where: str, data_type: ElementType) -> TensorDataType:
    """Return the type of an argument of a function that must hold indices."""
    if isinstance(data_type, OpaqueType) or data_type not in INDEX_TYPES:
        allowed = f"{where.rpartition('.')[2]} must be uint32, uint64, int32 or int64"
        raise TypeError(error_text(where, type_name(data_type), "it is not an index type", allowed))
    return data_type
