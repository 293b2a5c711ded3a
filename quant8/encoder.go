package quant8

import (
	"sync"

	"github.com/snug-ml/snug/internal/blockq"
)

// The encoders of the two dynamic maps, and the encoder of the signed map that keeps the
// sign, are built at first use. Other encoders are pooled: most callers use one map over
// and over.
var (
	signed   = sync.OnceValue(func() *blockq.Encoder { return newEncoder(DynamicMap(true), false) })
	keeping  = sync.OnceValue(func() *blockq.Encoder { return newEncoder(DynamicMap(true), true) })
	unsigned = sync.OnceValue(func() *blockq.Encoder { return newDivisor(DynamicMap(false)) })
	others   = sync.Pool{New: func() any { return newEncoder(new(Map), false) }}
)

func newEncoder(m *Map, keepSign bool) *blockq.Encoder {
	e := new(blockq.Encoder)
	e.Build((*[256]float32)(m), keepSign)
	return e
}

// newDivisor returns the encoder of states whose root divides the update.
func newDivisor(m *Map) *blockq.Encoder {
	e := newEncoder(m, false)
	e.KeepDivisor()
	return e
}

// encoderOf returns an encoder of m. The caller gives it back with release.
func encoderOf(m *Map) *blockq.Encoder {
	if s := signed(); *s.Map() == *m {
		return s
	}
	if u := unsigned(); *u.Map() == *m {
		return u
	}
	e := others.Get().(*blockq.Encoder)
	if *e.Map() != *m {
		e.Build((*[256]float32)(m), false)
	}
	return e
}

func release(e *blockq.Encoder) {
	if e != signed() && e != unsigned() {
		others.Put(e)
	}
}
