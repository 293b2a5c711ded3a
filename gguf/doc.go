// Package gguf reads and writes GGUF files, in which llama.cpp and programs on top of it keep models: metadata, and
// tensors whose elements may be in blocks of few bits.
//
//	f, err := gguf.Open("model.gguf")
//	for _, t := range f.Tensors() { // t.Name, t.Type, t.Shape
//		n, err := t.Bytes()
//		b := make([]byte, n) // or a part of it at a time
//		err = f.ReadAt(t.Name, b, 0)
//		err = t.Type.Decode(values, b) // to float32
//	}
//
// [Create] begins a file, [Writer.Write] appends the bytes of its tensors, and [Writer.Close] puts the file in its place
// as a whole. [Type.Encode] makes these bytes from float32.
//
// # The format
//
// A file is little-endian: the four bytes "GGUF", a uint32 with the version, two uint64 with the numbers of tensors and of
// pairs of metadata, the pairs, a description of each tensor, and the data. A string is a uint64 with its length and its
// bytes. A pair is a string, the key, a uint32 with the type of the value, and the value; an array is the type of its
// elements, a uint64 with their number, and the elements. A tensor is described by its name, a uint32 with the number of
// dimensions, a uint64 for each, the fastest first, a uint32 with its [Type] and a uint64 with the offset of its
// bytes. The data, and the bytes of each tensor in it, begin at multiples of the alignment: the value of
// general.alignment, a uint32, or 32. Tensors follow one another in the order of their descriptions.
//
// Versions 2 and 3 are read and version 3 is written; they differ in that 3 allows files of big-endian machines, which
// are refused. A model may be split into files NAME-00001-of-00003.gguf, whose metadata split.count and split.no say so.
//
// The source is docs/gguf.md of github.com/ggml-org/ggml. What it leaves open is as in llama.cpp and its Python package
// gguf 0.19: a key or a name that comes twice is an error, arrays have no arrays in them, a tensor has at most 4
// dimensions, and rows are whole blocks.
//
// # Types
//
// A quantized type has blocks of 32 or 256 elements of a row. [Type.Decode] gives the bits that the Python package gives, for
// f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k, iq4_nl, iq4_xs and mxfp4; tensors of ggml's other types are listed
// and their bytes are read. [Type.Encode] gives the bytes that the Python package gives, where that quantizes. For q2_k to q6_k,
// iq4_nl and iq4_xs, which it does not, the errors of random rows are smaller than those of ggml_quantize_chunk without an importance
// matrix: by 1 to 7 percent plain, and by 3 to 10 with squares of the elements as weights.
package gguf
