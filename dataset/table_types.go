package dataset

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"
	"github.com/x448/float16"

	"github.com/snug-ml/snug"
)

// foreign is a value of a table that is no text, number or boolean, such as a timestamp: programs differ about its text.
// It may be in fields that are not used. It is what kind of value it is.
type foreign string

// MarshalJSON implements [json.Marshaler]: it writes the kind.
func (x foreign) MarshalJSON() ([]byte, error) { return json.Marshal(string(x)) }

// leavesOf returns the columns of values of a table, as its description has them.
func leavesOf(file *parquet.File) (leaves []format.SchemaElement) {
	for _, e := range file.Metadata().Schema {
		if e.Type.Valid {
			leaves = append(leaves, e)
		}
	}
	return leaves
}

// scalarOf returns how values of a column are read whose type is another one than that in which they are stored, and nil for
// the others.
func scalarOf(t format.SchemaElement) func(parquet.Value) value {
	is := func(kind string) func(parquet.Value) value {
		return func(parquet.Value) value { return foreign(kind) }
	}
	if t.Type.Valid && t.Type.V == format.Int96 {
		return is("a timestamp")
	}
	switch x := t.LogicalType.Value.(type) {
	case *format.DecimalType:
		return is("a decimal")
	case *format.DateType:
		return is("a date")
	case *format.TimeType:
		return is("a time")
	case *format.TimestampType:
		return is("a timestamp")
	case *format.UUIDType:
		return is("a UUID")
	case *format.Float16Type:
		return float16Of
	case *format.IntType:
		if !x.IsSigned {
			return unsignedOf
		}
	}
	if t.ConvertedType.Valid {
		switch t.ConvertedType.V {
		case deprecated.Decimal:
			return is("a decimal")
		case deprecated.Date:
			return is("a date")
		case deprecated.TimeMillis, deprecated.TimeMicros:
			return is("a time")
		case deprecated.TimestampMillis, deprecated.TimestampMicros:
			return is("a timestamp")
		case deprecated.Interval:
			return is("an interval")
		case deprecated.Uint8, deprecated.Uint16, deprecated.Uint32, deprecated.Uint64:
			return unsignedOf
		}
	}
	return nil
}

// isText reports whether a column says that its bytes are UTF-8.
func isText(t format.SchemaElement) bool {
	switch t.LogicalType.Value.(type) {
	case *format.StringType, *format.EnumType, *format.JsonType:
		return true
	}
	return t.ConvertedType.Valid && (t.ConvertedType.V == deprecated.UTF8 || t.ConvertedType.V == deprecated.Enum || t.ConvertedType.V == deprecated.Json)
}

func float16Of(v parquet.Value) value {
	b := v.ByteArray()
	if len(b) != 2 {
		return foreign(fmt.Sprintf("a float of %d bytes", len(b)))
	}
	return floatOf(float64(float16.Frombits(binary.LittleEndian.Uint16(b)).Float32()), 32)
}

func unsignedOf(v parquet.Value) value {
	n := v.Uint64()
	if v.Kind() == parquet.Int32 {
		n = uint64(v.Uint32())
	}
	return json.Number(strconv.FormatUint(n, 10))
}

// once returns an error if two members of a group have one name, because programs differ about which of them counts.
func once(c *parquet.Column) error {
	seen := map[string]bool{}
	for _, inner := range c.Columns() {
		if seen[inner.Name()] {
			return twice(inner)
		}
		seen[inner.Name()] = true
		if err := once(inner); err != nil {
			return err
		}
	}
	return nil
}

func twice(c *parquet.Column) error {
	return fmt.Errorf("the column %s comes twice, want it once: %w", shortened(strings.Join(c.Path(), ".")), snug.ErrCorrupt)
}
