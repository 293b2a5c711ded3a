package safetensors

// dtype is an element type of the format.
type dtype struct {
	rank int // the place in the order of the reference implementation, from narrow to wide
	bits int64
}

// dtypes are all that version 0.8 of the reference implementation knows.
var dtypes = func() map[string]dtype {
	types := map[string]dtype{}
	for _, t := range []struct {
		name string
		bits int64
	}{
		{"BOOL", 8},
		{"F4", 4},
		{"F6_E2M3", 6},
		{"F6_E3M2", 6},
		{"U8", 8},
		{"I8", 8},
		{"F8_E5M2", 8},
		{"F8_E4M3", 8},
		{"F8_E8M0", 8},
		{"F8_E4M3FNUZ", 8},
		{"F8_E5M2FNUZ", 8},
		{"I16", 16},
		{"U16", 16},
		{"F16", 16},
		{"BF16", 16},
		{"I32", 32},
		{"U32", 32},
		{"F32", 32},
		{"C64", 64},
		{"F64", 64},
		{"I64", 64},
		{"U64", 64},
	} {
		types[t.name] = dtype{len(types), t.bits}
	}
	return types
}()

// Bits returns the bits of an element of a type, 0 for a name that the format
// does not know.
func Bits(dtype string) int64 { return dtypes[dtype].bits }
