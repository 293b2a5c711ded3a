package vision_test

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"log"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug/vision"
)

// An image becomes patches for Qwen2.5-VL, and its placeholder in the prompt as many tokens as the model has features of it.
func Example() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	config := `{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", "min_pixels": 3136, "max_pixels": 12845056}`
	if err := os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(config), 0o600); err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 120, 90))); err != nil {
		log.Fatal(err)
	}

	p, err := vision.OpenProcessor(dir)
	if err != nil {
		log.Fatal(err)
	}
	m, err := vision.Decode(&file, vision.DecodeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	in, err := p.Process(m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("shape", in.Shape, "grid", in.Grid, "tokens", in.Tokens)
	text, err := p.Expand("<|vision_start|><|image_pad|><|vision_end|>What is it?", in.Layout)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(text), text[:42])
	// Output:
	// shape [48 1176] grid [1 6 8] tokens 12
	// 197 <|vision_start|><|image_pad|><|image_pad|>
}
