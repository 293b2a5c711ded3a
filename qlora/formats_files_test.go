package qlora

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// TestKindsBadFiles reads files of a weight and scales that do not fit.
func TestKindsBadFiles(t *testing.T) {
	type tensor = map[string]any
	for name, c := range map[string]struct {
		weight  string
		tensors map[string]tensor
		data    string
		want    string
	}{
		"two tensors of scales": {"w", map[string]tensor{
			"w":           {"dtype": "F8_E4M3", "shape": []int{1, 2}, "data_offsets": []int{0, 2}},
			"w_scale":     {"dtype": "F8_E8M0", "shape": []int{1}, "data_offsets": []int{2, 3}},
			"w_scale_inv": {"dtype": "F8_E8M0", "shape": []int{1}, "data_offsets": []int{3, 4}},
		}, "\x30\x31\x7f\x80", "two tensors of scales"},
		"scales of other rows": {"w", map[string]tensor{
			"w_blocks": {"dtype": "U8", "shape": []int{2, 1, 16}, "data_offsets": []int{0, 32}},
			"w_scales": {"dtype": "U8", "shape": []int{1, 2}, "data_offsets": []int{32, 34}},
		}, strings.Repeat("\x11", 32) + "\x7f\x7f", "is [1 2], want [2 1]"},
		"no scales of FP8": {"w", map[string]tensor{
			"w": {"dtype": "F8_E5M2", "shape": []int{1, 1}, "data_offsets": []int{0, 1}},
		}, "\x00", `no scales for its tensor "w" of F8_E5M2, such as "w_scale_inv"`},
		"no scales of MXFP4": {"w", map[string]tensor{
			"w_blocks": {"dtype": "U8", "shape": []int{0, 1, 16}, "data_offsets": []int{0, 0}},
		}, "", `no scales for its tensor "w_blocks" of U8, such as "w_scales"`},
		"one scale of INT8": {"weight", map[string]tensor{
			"weight": {"dtype": "I8", "shape": []int{2, 1}, "data_offsets": []int{0, 2}},
			"SCB":    {"dtype": "F8_E8M0", "shape": []int{3}, "data_offsets": []int{2, 5}},
		}, "\x00\x00\x7f\x7f\x7f", "want one for each row"},
		"-128 beyond float32": {"weight", map[string]tensor{
			"weight": {"dtype": "I8", "shape": []int{1, 4}, "data_offsets": []int{0, 4}},
			"SCB":    {"dtype": "F32", "shape": []int{1}, "data_offsets": []int{4, 8}},
		}, "\x80\x80\x80\x80\x00\x01\x01\x7c", "products with 128 are finite"},
	} {
		t.Run(name, func(t *testing.T) {
			header, err := json.Marshal(c.tensors)
			require.NoError(t, err)
			file := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header, []byte(c.data))
			w, err := NewWeights(bytes.NewReader(file), int64(len(file)))
			require.NoError(t, err, name)
			_, err = w.Load(c.weight, nil)
			kind := snug.ErrCorrupt
			if strings.HasPrefix(name, "no scales") {
				kind = snug.ErrConfig
			}
			require.ErrorIs(t, err, kind, name)
			require.ErrorContains(t, err, c.want, name)
		})
	}
}

// TestKindsOfParts: scales for parts of a row are written as they were read.
func TestKindsOfParts(t *testing.T) {
	const out, in = 6, 64
	for _, scales := range [][2]int{{6, 4}, {6, 64}, {3, 2}, {1, 4}, {1, 64}} {
		n := scales[0] * scales[1]
		codes, bytesOfScales := make([]uint8, out*in), make([]uint8, n)
		for i := range codes {
			codes[i] = uint8(i % 127)
		}
		for i := range bytesOfScales {
			bytesOfScales[i] = uint8(120 + i%8)
		}
		var file bytes.Buffer
		_, err := amp.WriteWeights(&file, func(yield func(amp.Tensor, snug.View) bool) {
			_ = yield(amp.Tensor{Name: "w", DType: "F8_E4M3", Shape: []int{out, in}}, snug.ViewOf8(codes)) &&
				yield(amp.Tensor{Name: "w_scale", DType: "F8_E8M0", Shape: scales[:]}, snug.ViewOf8(bytesOfScales))
		}, nil)
		require.NoError(t, err)
		want := loaded(t, file.Bytes())
		file.Reset()
		_, err = WriteWeights(&file, maps.All(map[string]*Weight{"w": want}), nil)
		require.NoError(t, err)
		got := loaded(t, file.Bytes())
		require.Equal(t, want.grid, got.grid)
		sameBits(t, decoded(t, want), decoded(t, got))
	}
}

// TestKindsOfNothing: empty weights of any shape are made, written and read.
func TestKindsOfNothing(t *testing.T) {
	for _, o := range kinds {
		for _, shape := range [][]int{{0, 0}, {0, 64}, {64, 0}, {0, math.MaxInt / 32 * 32}, {math.MaxInt, 0}} {
			if len(o.Outliers) > 0 || o.Type == MXFP4 && shape[0]+shape[1] > 64 {
				continue
			}
			w, err := NewWeight([]float32{}, shape, o)
			require.NoError(t, err)
			var file bytes.Buffer
			_, err = WriteWeights(&file, maps.All(map[string]*Weight{"weight": w}), nil)
			require.NoError(t, err)
			for _, w := range []*Weight{w, loaded(t, file.Bytes())} {
				require.Equal(t, shape, w.Shape())
				require.Zero(t, w.Len())
				require.NoError(t, w.Dequantize(snug.ViewOf([]float32{})))
				l, err := NewLinear(w, snug.F32, 0)
				require.NoError(t, err)
				require.NoError(t, l.Close())
			}
		}
	}
}

// loaded reads the only weight of a file.
func loaded(t *testing.T, file []byte) *Weight {
	t.Helper()
	all, err := NewWeights(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.Len(t, all.Names(), 1)
	w, err := all.Load(all.Names()[0], nil)
	require.NoError(t, err)
	return w
}
