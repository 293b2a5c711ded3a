package attention

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// A call over ranks begins with an exchange of headers, which say what has to be the same on all ranks. Without them a
// rank with another mask or scale would give wrong results and no error, since its messages have the same lengths.

// function is what all ranks call.
type function uint64

const (
	ringForwards function = 1 + iota
	ringBackwards
	ulyssesForwards
	ulyssesBackwards
)

// The parts of a header.
const (
	ofFunction = iota
	ofType
	ofDimensions
	ofSequences
	ofMask
	ofScores
	ofDropout
	ofVectors
)

var subjects = [...]string{
	ofFunction: "the function", ofType: "the element type", ofDimensions: "the dimensions", ofSequences: "QStarts, KStarts or KLens",
	ofMask: "the mask", ofScores: "the scores", ofDropout: "Dropout", ofVectors: "which of lse and GradLSE they have",
}

// header is a number for each of the subjects.
type header [len(subjects)]uint64

const (
	headerBytes = 8 * len(header{})
	headerWords = headerBytes / 4 // of float32
)

// headersLen returns the length of the workspace in which a rank sends and receives headers, before it holds anything else.
func headersLen(headers int) int { return 2 * headers * headerWords }

// header returns what this rank's call has in common with those of the others. lse and dlse are whether these are
// exchanged. What vectors, masks and a Score hold is not compared: it can be large, or unknown.
func (g *group) header(f function, lse, dlse bool) header {
	c := &g.whole
	h := header{
		ofFunction:   uint64(f),
		ofType:       uint64(g.dtype),
		ofDimensions: start.ints(c.Batch, c.Heads, c.KVHeads, c.SeqQ, c.SeqK, c.Dim, c.DimV).sum(),
		ofSequences:  start.ints(c.QStarts...).ints(c.KStarts...).ints(c.KLens...).sum(),
		ofMask:       start.flags(c.Causal, c.Mask != nil).ints(int(c.Align), c.Shift, c.Window.Left, c.Window.Right).sum(),
		ofScores: start.floats(c.Scale, c.Softcap).flags(c.Score != nil).
			ints(c.Slopes.Len(), c.Sinks.X.Len(), c.Bias.X.Len()).ints(c.Bias.Dims[:]...).sum(),
		ofVectors: start.flags(lse, dlse).sum(),
	}
	if d := &c.Dropout; d.P > 0 { // without it a seed has no effect
		h[ofDropout] = start.floats(d.P).add(d.Seed).ints(d.Query, d.Key).sum()
	}
	return h
}

// checksum is that of the numbers which were added. Every step has an inverse, so one other number among them always
// gives another checksum.
type checksum uint64

// start and the constants in add have digits without a pattern (those of splitmix64, Steele, Lea, Flood 2014), so that
// small numbers do not lead from one state to itself.
const start checksum = 0x94d049bb133111eb

func (s checksum) sum() uint64 { return uint64(s) }

func (s checksum) add(x uint64) checksum {
	s ^= checksum(x)
	s ^= s >> 32
	s *= 0x9e3779b97f4a7c15
	s ^= s >> 29
	return s*0xbf58476d1ce4e5b9 + start
}

// ints adds a list and its length, and so tells where one list ends and the next begins.
func (s checksum) ints(list ...int) checksum {
	s = s.add(uint64(len(list)))
	for _, x := range list {
		s = s.add(uint64(x))
	}
	return s
}

func (s checksum) floats(list ...float32) checksum {
	for _, x := range list {
		s = s.add(uint64(math.Float32bits(x)))
	}
	return s
}

func (s checksum) flags(list ...bool) checksum {
	for _, x := range list {
		bit := uint64(0)
		if x {
			bit = 1
		}
		s = s.add(bit)
	}
	return s
}

// tell sends headers from the first half of a workspace and returns what arrives in the second half. It lies there,
// because ranks may move only what a device has. Host memory is allocated for a device alone.
func (h *header) tell(ws snug.View, move func(dst, src snug.View) error) (got []byte, err error) {
	n := ws.Len() / 2
	src, dst := slice(ws, 0, n), slice(ws, n, 2*n)
	sent := hostBytes(src)
	for at := 0; at < len(sent); at += headerBytes {
		for i, x := range h {
			binary.LittleEndian.PutUint64(sent[at+8*i:], x)
		}
	}
	if err := snug.Copy(device.As(src, snug.U8), snug.SliceView(sent)); err != nil {
		return nil, err
	}
	if err := move(dst, src); err != nil {
		return nil, err
	}
	got = hostBytes(dst)
	return got, snug.Copy(snug.SliceView(got), device.As(dst, snug.U8))
}

// hostBytes returns the bytes of a vector, or as many others if it lies on a device.
func hostBytes(v snug.View) []byte {
	if v.Device().IsCPU() {
		return device.Mem(&v).Bytes()
	}
	return make([]byte, v.Bytes())
}

// headerOf returns a header that was told.
func headerOf(told []byte, number int) (h header) {
	for i := range h {
		h[i] = binary.LittleEndian.Uint64(told[number*headerBytes+8*i:])
	}
	return h
}

// differ returns an error if two ranks have different headers.
func differ(a, b int, of, other header) error {
	if of == other {
		return nil
	}
	var in []string
	for i, what := range subjects {
		if of[i] != other[i] {
			in = append(in, what)
			if i == ofDimensions {
				break // others follow from them, such as the default Scale
			}
		}
	}
	text := in[len(in)-1]
	if first := in[:len(in)-1]; len(first) > 0 {
		text = strings.Join(first, ", ") + " and " + text
	}
	return fmt.Errorf("attention: ranks %d and %d differ in %s: %w", min(a, b), max(a, b), text, snug.ErrConfig)
}

// agree compares this rank's call with that of the rank before it. So two ranks find a difference, for one message of
// each; to tell all ranks would take one after another as many as there are ranks.
func (r *ring) agree(f function, ws snug.View) error {
	own := r.header(f, false, false) // each rank has lse and GradLSE for its own rows
	told, err := own.tell(slice(ws, 0, headersLen(1)), func(dst, src snug.View) error { return r.send("Options", dst, src) })
	if err != nil {
		return err
	}
	return differ(r.last(), r.rank, headerOf(told, 0), own)
}

// agree compares the calls of all ranks, and returns the same error on each.
func (u *ulysses) agree(f function, ws snug.View, lse, dlse bool) error {
	own := u.header(f, lse, dlse)
	told, err := own.tell(slice(ws, 0, headersLen(u.size)), func(dst, src snug.View) error {
		if err := u.ranks.AllToAll(dst, src); err != nil {
			return fmt.Errorf("attention: Options of all ranks: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	first := headerOf(told, 0)
	for rank := 1; rank < u.size; rank++ {
		if err := differ(0, rank, first, headerOf(told, rank)); err != nil {
			return err
		}
	}
	return nil
}
