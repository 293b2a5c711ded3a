// Package pack keeps activations in fewer bits between the forward and the backward pass.
//
//	layer             the forward pass packs         and keeps, of the bytes of   the backward pass
//	                                                 f32   f16, bf16   bool
//	ReLU              [Signs] of the output          1/32  1/16                   [ApplyBits] with scale 1
//	Dropout           [Bits] of the mask             1/32  1/16        1/8        [ApplyBits] with 1/(1-p)
//	anything else     [Bits] of where x is not 0     1/32  1/16        1/8        [UnpackBits]
//	GELU, matmul      [Int8] of the input            26 %  52 %                   [UnpackInt8]
//
// The first three are exact: no backward step needs more than the bit. Gist (Jain et al.
// 2018, "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA) does this for
// ReLU. ReLU qualifies where the layers after it no longer need its output: pooling, a sum,
// a product with frozen weights. [Int8] loses precision; its error is stated there.
//
// # Masks
//
// Bit i%8, counted from the lowest, of byte i/8 stands for element i. A mask of n elements
// has [BitsLen](n) bytes.
package pack
