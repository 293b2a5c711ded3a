package neon

import (
	"fmt"
	"go/ast"
	"go/parser"
	"strconv"
)

// layout returns the places of the parameters and results of a function on the
// stack, as Go's ABI0 has them, and their size. Those of a slice s are s_base
// and s_len. A result without a name is ret.
func layout(signature string) (places map[string]int, size int) {
	expr, err := parser.ParseExpr(signature)
	check(err)
	fn := expr.(*ast.FuncType)
	places = map[string]int{}
	size = place(places, fn.Params, 0)
	if fn.Results != nil {
		size = place(places, fn.Results, up(size, 8))
	}
	return places, size
}

// place adds the fields from offset on, and returns their end.
func place(places map[string]int, fields *ast.FieldList, offset int) int {
	for _, field := range fields.List {
		size, align, slice := sizeOf(field.Type)
		names := []string{"ret"}
		if len(field.Names) > 0 {
			names = nil
		}
		for _, n := range field.Names {
			names = append(names, n.Name)
		}
		for _, name := range names {
			offset = up(offset, align)
			if slice {
				places[name+"_base"], places[name+"_len"] = offset, offset+8
			} else {
				places[name] = offset
			}
			offset += size
		}
	}
	return offset
}

func up(n, align int) int { return (n + align - 1) / align * align }

func sizeOf(t ast.Expr) (size, align int, slice bool) {
	switch t := t.(type) {
	case *ast.StarExpr:
		return 8, 8, false
	case *ast.ArrayType:
		if t.Len == nil {
			return 24, 8, true
		}
		n, err := strconv.Atoi(t.Len.(*ast.BasicLit).Value)
		check(err)
		size, align, _ = sizeOf(t.Elt)
		return n * size, align, false
	case *ast.Ident:
		switch t.Name {
		case "bool":
			return 1, 1, false
		case "float32", "uint32":
			return 4, 4, false
		case "int", "float64":
			return 8, 8, false
		}
	}
	panic(fmt.Sprintf("size of %v", t))
}
