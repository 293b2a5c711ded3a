package quant8

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
)

// The state of a parameter in bitsandbytes is the tensors
//
//	step                the number of steps, a scalar
//	state1, state2      the moments: codes as U8, or F32 for 32-bit state
//	qmap1, qmap2        the maps of the codes, 256 of F32
//	absmax1, absmax2    of the blocks of the flattened parameter, F32
//
// the last four with 8-bit state only. An optimizer with one state lacks the tensors of
// the second. The state_dict of bitsandbytes has all tensors except step in a dictionary
// of their own.
const (
	nestedKey = "__bnb_optimizer_quant_state__"

	// bitsandbytesBlock is the block size of bitsandbytes' 8-bit optimizers.
	bitsandbytesBlock = 256
)

// blocksOfFiles are the block sizes that bitsandbytes knows. The block size of its
// optimizers comes first; old versions had 2048. The number of blocks tells the sizes
// apart, unless there is only one block.
var blocksOfFiles = [...]int{bitsandbytesBlock, 2048, 32, 64, 128, 512, 1024, 4096}

// BitsAndBytesFormat says how [Optimizer.WriteBitsAndBytes] names the tensors of a
// state, and what shapes it gives them.
type BitsAndBytesFormat struct {
	// Prefix comes before the names of the parameters, for example
	// "optimizer.".
	Prefix string
	// Nested names the tensors as state_dict of bitsandbytes does: all tensors except
	// step are named <Prefix><parameter>.__bnb_optimizer_quant_state__.<key>. Otherwise
	// they are named <Prefix><parameter>.<key>, as bitsandbytes itself uses them.
	// bitsandbytes loads both.
	Nested bool
	// Shapes has the shapes of parameters by name. state1 and state2 get the shape of
	// their parameter, or one dimension if Shapes lacks the parameter. bitsandbytes'
	// CPU library needs the shapes of matrices.
	Shapes map[string][]int
}

// name returns the name of a tensor.
func (f *BitsAndBytesFormat) name(param, key string) string {
	if f.Nested && key != "step" {
		key = nestedKey + "." + key
	}
	return f.Prefix + param + "." + key
}

// stateFile is a file with the state of an optimizer of bitsandbytes.
type stateFile struct {
	r      io.ReaderAt
	h      *safetensors.Header
	prefix string
}

// find returns the tensor of a key of a parameter, under either name, or nil.
func (f *stateFile) find(param, key string) *safetensors.Tensor {
	for _, nested := range []bool{false, true} {
		format := BitsAndBytesFormat{Prefix: f.prefix, Nested: nested}
		if t := f.h.Find(format.name(param, key)); t != nil {
			return t
		}
	}
	return nil
}

// read fills b with the bytes of a tensor that begin at an offset.
func (f *stateFile) read(b []byte, t *safetensors.Tensor, from int64) error {
	return safetensors.ReadFull(f.r, b, f.h.Data+t.Begin+from)
}

// readFloats fills x with the elements of an F32 tensor that begin at element lo.
func (f *stateFile) readFloats(x []float32, t *safetensors.Tensor, lo int) error {
	b := bytesOfFloats(x)
	if err := f.read(b, t, 4*int64(lo)); err != nil {
		return err
	}
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}

// tensorKeys names the tensors of a state.
type tensorKeys struct{ state, qmap, absmax string }

// stateKeys names the tensors of the first state, which has the signed map in
// bitsandbytes, and of the second, which has the unsigned one.
var stateKeys = [2]tensorKeys{
	{"state1", "qmap1", "absmax1"},
	{"state2", "qmap2", "absmax2"},
}

// checkForm says whether bitsandbytes has the states of the optimizer in this form.
func (o *options) checkForm() error {
	if o.BitsAndBytes == "" {
		return fmt.Errorf("bitsandbytes has no optimizer that goes on from the state of %s, or only with other options: %w", o.Title, snug.ErrConfig)
	}
	return nil
}

// checkDecay refuses weight decay that bitsandbytes' optimizer of the same name lacks:
// all of its rules decay the weights themselves.
func (q *param) checkDecay(o *options) error {
	if o.hyper.Coupled && q.options.WeightDecay != 0 {
		return fmt.Errorf("weight decay of %g: bitsandbytes decays the weights themselves, as rules with decoupled decay do: %w", q.options.WeightDecay, snug.ErrConfig)
	}
	return nil
}

// checkWidth says whether bitsandbytes has states of this width.
func (l layout) checkWidth() error {
	if l.narrow() {
		return fmt.Errorf("states of %d bits, bitsandbytes has 8 and 32: %w", l.bits, snug.ErrConfig)
	}
	return nil
}

// errIn says which tensor an error is about.
func errIn(key string, err error) error { return fmt.Errorf("%s: %w", key, err) }
