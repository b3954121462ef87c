"""Small values that know no array and no device: tensors, enumerations, scalars, names of types, errors."""
