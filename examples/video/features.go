package main

import (
	"context"
	"crypto/sha256"
	"path/filepath"
	"slices"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/vision"
)

var features = vision.CacheOptions{DType: snug.F16}

// cache opens the features.
func cache() (in *vision.Input, c *vision.Cache, s *offload.Store) {
	in, s = must(vision.OpenInput(*dir)), must(offload.Open(filepath.Join(*dir, "features"), offload.Options{HostLimit: 4 << 20}))
	return in, must(in.NewCache(s, features)), s
}

// shown returns how many frames of a clip are shown, and which is the number i of them: vision.Frames chooses so.
func shown() int       { return min(*frames, drawn) }
func chosen(i int) int { return i * drawn / shown() }

// encode computes the features of the frames that are not there.
func encode() (r result) {
	in, c, s := cache()
	e, began := must(vision.OpenEncoder(*dir, layers.Options{})), time.Now()
	l, list, read := must(in.Processor.Layout(side, side)), []*vision.Image(nil), -1
	must(0, c.Fill(context.Background(), e, *clips*shown(), func(i int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error)) {
		i, frame := i/shown(), i%shown()
		return sum(i, chosen(frame)), l, func() (vision.Pixels, error) {
			if read != i {
				list, read = must(vision.Frames(clip(i), *frames, vision.DecodeOptions{})), i
			}
			return in.Processor.Process(list[frame])
		}
	}, nil))
	r.Frames, r.Rows, r.Seconds = shown(), shown()*must(in.Rows(l)), time.Since(began).Seconds()/float64(*clips)
	r.Cache = int64(*clips*shown()) * must(in.FeatureBytes(l, features))
	must(0, s.Close())
	return r
}

// prompts returns a micro-batch of clips.
func prompts(in *vision.Input, c *vision.Cache, list ...int) (b vision.Batch) {
	l := must(in.Processor.Layout(side, side))
	b.Text.Sequences = len(list)
	for _, i := range list {
		for f := range shown() {
			b.Features = append(b.Features, must(c.Get(sum(i, chosen(f)), l)))
		}
		rows := shown() * must(in.Rows(l))
		b.Text.Tokens = append(append(append(b.Text.Tokens, begin), slices.Repeat([]int32{placeholder}, rows)...), asks)
		_, direction := draw(i)
		b.Text.Labels = append(append(b.Text.Labels, slices.Repeat([]int32{-100}, rows+1)...), int32(left+direction))
	}
	return b
}
