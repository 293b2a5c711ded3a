package train

import (
	"github.com/snug-ml/snug"
)

// Window takes the gradients of a backward pass. Into returns the float32 accumulator of a parameter, which has the
// length of the parameter, and how a gradient enters it; further calls for the same name in one micro-batch return a
// Beta of 1.
//
// If a Window has the method Done(name string) error, a model may call it as soon as the gradient of a parameter is
// complete. Options.InBackward needs a model that does. Its Window also has the method HoldsOne() bool, which says that
// the model saves memory if it completes the gradient of a parameter before it begins the next one.
type Window = interface {
	Into(name string) (acc snug.View, into snug.Into, err error)
}

// Matrices is the method of a Model that [quant8.Apollo], [quant8.GaLore] and [quant8.SOAP] need. Matrix returns the
// rows and columns of a parameter whose gradient they may project: a matrix of a layer. It returns 0, 0 for others, such
// as embeddings, the output layer and vectors, which take AdamW.
type Matrices interface {
	Matrix(name string) (rows, cols int)
}

// Blocks is an optional method of a Model, for [quant8.AdamMini]. Block returns how many elements of a parameter share a
// second moment, see [quant8.ParamOptions]. 0 stands for all elements; so does a model without the method.
type Blocks interface {
	Block(name string) (elements int)
}

// Paged is an optional method of a Model whose parameters lie in an [accum.Pages], as those of ZeRO-3 do. Paged returns the
// key in the Pages, the type and the number of elements of a parameter that lies there, and an empty key for others. The
// elements that Trainable yields for such a parameter are empty.
type Paged interface {
	Paged(name string) (key string, dt snug.DType, elements int)
}
