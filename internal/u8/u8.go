// Package u8 is vectors of bytes in all the forms that callers have them.
package u8

import (
	"unsafe"

	"github.com/snug-ml/snug"
)

// Vector is a vector of bytes. A View given as one must hold U8, which is for the
// callee to check.
type Vector interface {
	~[]uint8 | snug.Array[uint8] | snug.View
}

// View returns v without its type.
func View[V Vector](v V) snug.View {
	switch v := any(v).(type) {
	case snug.Array[uint8]:
		return v.View()
	case snug.View:
		return v
	}
	return snug.SliceView(*(*[]uint8)(unsafe.Pointer(&v))) // which all other Vectors are, whatever their names
}
