package segment

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
)

// Stage is a stage of TinyViT: blocks on an image of one size. The first stage's are inverted bottlenecks of convolutions, without Heads and
// Window.
type Stage struct {
	Width  int // channels
	Layers int // blocks
	Hidden int // channels within a block
	Heads  int
	Window int // positions of the side of a window of attention
}

// TinyViT returns the shape of MobileSAM (Zhang et al. 2023, arXiv:2306.14289) and TinySAM (Shu et al. 2023, arXiv:2312.13789).
func TinyViT() Config {
	c := ViTB()
	c.Encoder = EncoderConfig{
		Type: tinyViT{}.name(), Image: publishedSize, Patch: 16, Channels: 3, Out: 256, Waves: 128,
		Stages: []Stage{{64, 2, 256, 0, 0}, {128, 2, 512, 4, 7}, {160, 6, 640, 5, 14}, {320, 2, 1280, 10, 7}},
	}
	c.Decoder.Eps = 1e-5
	return c
}

// tinyViT is TinyViT (Wu et al. 2022, arXiv:2207.10666) as MobileSAM has it: two convolutions make a quarter of each side, and each stage but
// the first and the last begins with half of the sides of the one before. Its rows are images with channels last.
type tinyViT struct{}

func (tinyViT) name() string { return "tiny_vit" }

func (tinyViT) layout(c *Config) (layout, error) { return newOriginal(c), nil }

func (tinyViT) tensor() string { return "image_encoder.patch_embed.seq.0.c.weight" }

func (t tinyViT) describe(s *shapes, c *Config) {
	e, at := &c.Encoder, "image_encoder."
	e.Channels, e.Out = s.of(t.tensor(), 4)[1], s.of(at+"neck.0.weight", 4)[0]
	for i := range min(mostStages+1, 1+s.count(at+"layers.%d.downsample.conv1.c.weight")) {
		block := fmt.Sprint(at, "layers.", i, ".blocks.%d.")
		first, stage := fmt.Sprintf(block, 0), Stage{}
		if i == 0 {
			up := s.of(first+"conv1.c.weight", 4)
			stage = Stage{Width: up[1], Layers: s.count(block + "conv1.c.weight"), Hidden: up[0]}
		} else {
			up, biases := s.of(first+"mlp.fc1.weight", 2), s.of(first+"attn.attention_biases", 2)
			stage = Stage{up[1], s.count(block + "mlp.fc1.weight"), up[0], biases[0], int(math.Sqrt(float64(biases[1])))}
		}
		e.Stages = append(e.Stages, stage)
	}
	e.Patch = patchOf(len(e.Stages))
}

const mostStages = 8

// patchOf returns the pixels of the side of a position of the last of so many stages.
func patchOf(stages int) int { return 4 << max(0, stages-2) }

// grid returns the positions on a side in a stage.
func (e *EncoderConfig) grid(stage int) int { return e.Image / 4 >> min(stage, len(e.Stages)-2) }

func (tinyViT) check(c *Config) error {
	e := &c.Encoder
	if n := len(e.Stages); n < 2 || n > mostStages || e.Patch != patchOf(n) {
		return fmt.Errorf("%d stages and patches of %d pixels, want 2 to %d stages and patches of %d: %w", n, e.Patch, mostStages, patchOf(n), snug.ErrConfig)
	}
	product := func(list ...int) float64 {
		p := 1.
		for _, n := range list {
			p *= float64(n)
		}
		return p
	}
	for i, s := range e.Stages {
		grid := e.grid(i)
		switch {
		case s.Width < 1 || s.Width > most || s.Hidden < 1 || s.Hidden > most || s.Layers < 0 || s.Layers > 1<<10 || s.Width%2 != 0:
			return fmt.Errorf("stage %d has %d channels, %d within its %d blocks, want 1 to 2^20, an even number, in up to 1024: %w", i, s.Width, s.Hidden, s.Layers, snug.ErrConfig)
		case i > 0 && (s.Heads < 1 || s.Window < 1 || s.Width%s.Heads != 0 || s.Window > 64 || s.Heads > 1<<10):
			return fmt.Errorf("stage %d has %d heads for %d channels and windows of %d positions, want a divisor, and up to 64: %w", i, s.Heads, s.Width, s.Window, snug.ErrConfig)
		}
		for _, n := range []float64{
			product(s.Width, max(s.Width, s.Hidden)), product(grid, grid, s.Width), product(grid, s.Hidden, 8), product(grid+s.Window, s.Window, 3, s.Width),
			product(s.Heads, s.Window*s.Window, s.Window*s.Window), product(s.Width, e.Stages[max(0, i-1)].Width),
		} {
			if n > math.MaxInt32 {
				return fmt.Errorf("stage %d of %d by %d positions has layers or activations of more than 2^31 elements: %w", i, grid, grid, snug.ErrConfig)
			}
		}
	}
	if last := e.Stages[len(e.Stages)-1]; product(last.Width, e.Out) > math.MaxInt32 || product(e.Out, e.Channels) > math.MaxInt32 {
		return fmt.Errorf("the last stage has %d channels, which become %d, want up to 2^31 elements of a layer: %w", last.Width, e.Out, snug.ErrConfig)
	}
	return nil
}

// width implements kind: that of an image.
func (tinyViT) width(e *EncoderConfig) int { return e.Channels * e.Image * e.Image }

// input implements kind: it appends an image with channels last.
func (tinyViT) input(to []float32, e *EncoderConfig, image []float32) []float32 {
	n := e.Image * e.Image
	for i := range n {
		for channel := range e.Channels {
			to = append(to, image[channel*n+i])
		}
	}
	return to
}

// layers implements kind.
func (tinyViT) layers(c *Config) (list []layers.Layer) {
	const prefix = "image_encoder."
	e := &c.Encoder
	first, grid := e.Stages[0].Width, e.Image/4
	at := prefix + "patch_embed.seq."
	list = append(list, &stem{near: newFolded(at+"0", e.Channels, first/2, 3, 2, 1), merge: newFolded(at+"2", first/2, first, 3, 2, 1), grid: e.Image / 2})
	for i, s := range e.Stages {
		stage := fmt.Sprint(prefix, "layers.", i, ".")
		grid = e.grid(i)
		for j := range s.Layers {
			block := fmt.Sprint(stage, "blocks.", j, ".")
			if i == 0 {
				list = append(list, newBottleneck(block, s.Width, s.Hidden, s.Width, grid, 1, true))
			} else {
				list = append(list, newWindowed(block, s, grid))
			}
		}
		if i+1 < len(e.Stages) {
			next := e.Stages[i+1].Width
			list = append(list, newBottleneck(stage+"downsample.", s.Width, next, next, grid, grid/e.grid(i+1), false))
		}
	}
	plane := func(name string, in, side int) *layers.Conv {
		s := conv.Shape{In: in, Out: e.Out, Dims: 2, Size: [3]int{grid, grid}, Kernel: [3]int{side, side}, Layout: conv.ChannelsLast}
		return layers.NewConv(prefix+name, s.Same(), false)
	}
	norm := func(name string) *layers.Norm {
		n := layers.NewLayerNorm(prefix+name, e.Out)
		n.Eps = 1e-6
		return n
	}
	return append(list, plane("neck.0", e.Stages[len(e.Stages)-1].Width, 1), norm("neck.1"), plane("neck.2", e.Out, 3), norm("neck.3"))
}
