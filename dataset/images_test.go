package dataset

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/vision"
)

// imageFolder has models of images and text that testdata/tune.py of package vision makes, images and data.
const imageFolder = "../vision/testdata/tune"

// seeing returns the tokenizer and the options of a model of images and text.
func seeing(t *testing.T, name string) (*tokenizer.Tokenizer, Options) {
	dir := filepath.Join(imageFolder, name)
	in, err := vision.OpenInput(dir)
	require.NoError(t, err)
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	o := Options{Context: 256, Images: in}
	if tok.Config().ChatTemplate != "" {
		o.Template, err = chat.Open(tok, chat.Options{})
		require.NoError(t, err)
	}
	return tok, o
}

// families are the folders of models.
func families(t *testing.T) (names []string) {
	list, err := filepath.Glob(filepath.Join(imageFolder, "*", "golden.json"))
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, name := range list {
		names = append(names, filepath.Base(filepath.Dir(name)))
	}
	return names
}

// TestImagesGolden: the tokens of conversations with images, and which are learned, are those of transformers' processors.
func TestImagesGolden(t *testing.T) {
	for _, name := range families(t) {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(imageFolder, name, "golden.json"))
			require.NoError(t, err)
			var golden struct {
				Data    string
				Samples []struct {
					Tokens  []int32
					Learned []int
				}
			}
			require.NoError(t, json.Unmarshal(text, &golden))
			tok, o := seeing(t, name)
			s, err := Open([]string{filepath.Join(imageFolder, golden.Data)}, tok, o)
			require.NoError(t, err)
			require.Equal(t, len(golden.Samples), s.list.n, s.Stats().Files)
			images := 0
			for i, want := range golden.Samples {
				b, err := s.batch([]int{i})
				require.NoError(t, err)
				require.Equal(t, want.Tokens[:len(want.Tokens)-1], b.Tokens)
				for j, label := range b.Labels {
					if want.Learned[j+1] == 0 {
						require.Equal(t, int32(-1), label, "sample %d token %d", i, j)
					} else {
						require.Equal(t, want.Tokens[j+1], label, "sample %d token %d", i, j)
					}
				}
				rows := 0
				for _, n := range b.Images[0] {
					require.Equal(t, images, n)
					x, err := s.Pixels(n)
					require.NoError(t, err)
					require.Equal(t, s.Layout(n), x.Layout)
					r, err := o.Images.Rows(x.Layout)
					require.NoError(t, err)
					rows, images = rows+r, images+1
				}
				for _, token := range b.Tokens {
					if token == o.Images.Token() {
						rows--
					}
				}
				require.Zero(t, rows)
			}
			require.Equal(t, images, s.Images())
			require.NoError(t, s.Close())
		})
	}
}

// imageRows writes rows to a file of a folder with images.
func imageRows(t *testing.T, rows ...string) (path string) {
	dir := t.TempDir()
	for _, name := range []string{"0.png", "1.png", "2.png"} {
		data, err := os.ReadFile(filepath.Join(imageFolder, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	path = filepath.Join(dir, "data.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(rows, "\n")), 0o600))
	return path
}

const colorAnswer = `{"role": "assistant", "content": "a red square"}`

// TestImageForms: one image, however it is given, is the same sample with the same pixels.
func TestImageForms(t *testing.T) {
	tok, o := seeing(t, "gemma3")
	data, err := os.ReadFile(filepath.Join(imageFolder, "0.png"))
	require.NoError(t, err)
	b64 := base64.StdEncoding.EncodeToString(data)
	abs, err := filepath.Abs(filepath.Join(imageFolder, "0.png"))
	require.NoError(t, err)
	part := func(image string) string {
		return `{"messages": [{"role": "user", "content": [` + image + `, {"type": "text", "text": "what color"}]}, ` + colorAnswer + `]}`
	}
	want := ""
	for name, row := range map[string]string{
		"path":              part(`{"type": "image", "path": "0.png"}`),
		"image":             part(`{"type": "image", "image": "0.png"}`),
		"without a type":    part(`{"image": "0.png"}`),
		"url":               part(`{"type": "image", "url": "0.png"}`),
		"absolute":          part(`{"type": "image", "path": ` + string(must(json.Marshal(abs))) + `}`),
		"file URL":          part(`{"type": "image_url", "image_url": {"url": "file://` + filepath.ToSlash(abs) + `"}}`),
		"data URL":          part(`{"type": "image_url", "image_url": {"url": "data:image/png;base64,` + b64 + `", "detail": "low"}}`),
		"OpenAI's input":    part(`{"type": "input_image", "image_url": "data:image/png;base64,` + b64 + `"}`),
		"base64":            part(`{"type": "image", "base64": "` + b64 + `"}`),
		"place and images":  `{"images": ["0.png"], ` + part(`{"type": "image"}`)[1:],
		"place and image":   `{"image": {"path": "0.png", "bytes": null}, ` + part(`{"type": "image", "text": null}`)[1:],
		"no place":          `{"images": ["0.png"], "messages": [{"role": "user", "content": "what color"}, ` + colorAnswer + `]}`,
		"mark in a text":    `{"images": ["0.png"], "messages": [{"role": "user", "content": "<image>\nwhat color"}, ` + colorAnswer + `]}`,
		"LLaVA's":           `{"image": "0.png", "conversations": [{"from": "human", "value": "<image>\nwhat color"}, {"from": "gpt", "value": "a red square"}]}`,
		"question, answer":  `{"image": "0.png", "question": "what color", "answer": "a red square"}`,
		"prompt completion": `{"image": "0.png", "prompt": [{"role": "user", "content": "what color"}], "completion": [` + colorAnswer + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open([]string{imageRows(t, row)}, tok, o)
			require.NoError(t, err)
			require.Equal(t, 1, s.Images())
			got := describe(t, s)
			if want == "" {
				want = got
			}
			require.Equal(t, want, got)
			require.NoError(t, s.Close())
		})
	}
	// A table has the file's bytes, as datasets writes images.
	type image struct {
		Bytes []byte  `parquet:"bytes,optional"`
		Path  *string `parquet:"path,optional"`
	}
	type row struct {
		Images   []image `parquet:"images,list"`
		Question string  `parquet:"question"`
		Answer   string  `parquet:"answer"`
	}
	path := filepath.Join(t.TempDir(), "data.parquet")
	require.NoError(t, parquet.WriteFile(path, []row{{[]image{{Bytes: data}}, "what color", "a red square"}}))
	s, err := Open([]string{path}, tok, o)
	require.NoError(t, err)
	require.Equal(t, want, describe(t, s))
	require.NoError(t, s.Close())
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// describe returns the first sample and the values of its image.
func describe(t *testing.T, s *Set) string {
	b, err := s.batch([]int{0})
	require.NoError(t, err)
	x, err := s.Pixels(b.Images[0][0])
	require.NoError(t, err)
	text, err := json.Marshal([]any{b.Tokens, b.Labels, b.Images, x})
	require.NoError(t, err)
	return string(text)
}

// TestImageRefused: what would be learned wrongly is an error that says the line.
func TestImageRefused(t *testing.T) {
	tok, o := seeing(t, "gemma3")
	ask := func(content string) string {
		return `{"role": "user", "content": ` + content + `}`
	}
	for name, c := range map[string]struct{ row, says string }{
		"no file":              {`{"image": "9.png", "question": "x", "answer": "y"}`, "no such file"},
		"no image":             {`{"image": "data.jsonl", "question": "x", "answer": "y"}`, "want PNG, JPEG"},
		"a web page":           {`{"image": "https://example.com/0.png", "question": "x", "answer": "y"}`, "nothing is downloaded"},
		"no base64":            {`{"image": "data:image/png;base64,!!", "question": "x", "answer": "y"}`, "base64"},
		"no data":              {`{"image": "data:image/png,0", "question": "x", "answer": "y"}`, "base64"},
		"a number":             {`{"image": 7, "question": "x", "answer": "y"}`, "image 0: a number"},
		"an empty object":      {`{"image": {"id": 3}, "question": "x", "answer": "y"}`, "an object with id"},
		"two fields":           {`{"image": "0.png", "images": ["1.png"], "question": "x", "answer": "y"}`, "both image and images"},
		"too many places":      {`{"image": "0.png", "question": "<image> or <image>", "answer": "y"}`, "places for 2 images, and the row has 1"},
		"a place without":      {`{"question": "<image> what", "answer": "y"}`, "places for 1 images, each <image> or part of type image without a path, and the row has none"},
		"too many images":      {`{"images": ["0.png", "1.png"], "question": "<image> what", "answer": "y"}`, "places for 1 images, and the row has 2"},
		"beside its own":       {`{"image": "0.png", "messages": [` + ask(`[{"type": "image", "path": "1.png"}]`) + `, ` + colorAnswer + `]}`, "no place for them"},
		"drawn":                {`{"messages": [` + ask(`"x"`) + `, {"role": "assistant", "content": [{"type": "image", "path": "0.png"}, {"type": "text", "text": "x"}]}]}`, "turn of the assistant"},
		"drawn mark":           {`{"image": "0.png", "question": "x", "answer": "<image>"}`, "writes only text"},
		"two in a part":        {`{"messages": [` + ask(`[{"type": "image", "path": "1.png", "url": "0.png"}]`) + `, ` + colorAnswer + `]}`, "more than one image"},
		"a text in the part":   {`{"messages": [` + ask(`[{"type": "image", "path": "1.png", "text": "see"}]`) + `, ` + colorAnswer + `]}`, "a part of its own"},
		"the token":            {`{"image": "0.png", "question": "<image_soft_token>", "answer": "y"}`, "5 times the token"},
		"the placeholder":      {`{"image": "0.png", "question": "<start_of_image>", "answer": "y"}`, "2 times"},
		"the token alone":      {`{"question": "<image_soft_token>", "answer": "y"}`, "1 times the token"},
		"noncharacters":        {`{"question": "\ufde80\ufde9", "answer": "y"}`, "noncharacters"},
		"texts":                {`{"image": "0.png", "text": "x y z"}`, "messages"},
		"a video":              {`{"messages": [` + ask(`[{"type": "video", "path": "1.mp4"}]`) + `, ` + colorAnswer + `]}`, "video"},
		"no user":              {`{"image": "0.png", "messages": [{"role": "system", "content": "x"}, ` + colorAnswer + `]}`, "no turn of the user"},
		"a name with 0":        {`{"image": "a\u0000.png", "question": "x", "answer": "y"}`, "no path"},
		"a device":             {`{"image": "/dev/zero", "question": "x", "answer": "y"}`, "regular file"},
		"a folder":             {`{"image": "/", "question": "x", "answer": "y"}`, "is a folder"},
		"more than the header": {`{"image": {"bytes": "iVBORw0KGgo="}, "question": "x", "answer": "y"}`, "PNG"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open([]string{imageRows(t, c.row)}, tok, o)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "line 1")
			require.Nil(t, s)
		})
	}
	o.Pairs = true
	_, err := Open([]string{imageRows(t, `{"chosen": "x", "rejected": "y"}`)}, tok, o)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestImageSets: samples with and without images, images that do not fit the context, files that change, and sums.
func TestImageSets(t *testing.T) {
	tok, o := seeing(t, "gemma3")
	row := func(image, answer string) string {
		return `{` + image + `"question": "what color", "answer": "` + answer + `"}`
	}
	rows := []string{row("", "none"), row(`"image": "0.png", `, "red"), row(`"images": ["1.png", "2.png"], `, "two"), row("", "none again"), row(`"image": "2.png", `, "blue")}
	path := imageRows(t, rows...)
	s, err := Open([]string{path}, tok, o)
	require.NoError(t, err)
	b, err := s.batch([]int{4, 0, 2, 3, 1})
	require.NoError(t, err)
	require.Equal(t, [][]int{{3}, nil, {1, 2}, nil, {0}}, b.Images)
	require.Equal(t, []int{0, 1, 2, 3}, s.ImagesOf(0, 5, 1))
	first, err := s.Batch(0, 1, 1)
	require.NoError(t, err)
	require.Equal(t, append([]int(nil), first[0].Images[0]...), s.ImagesOf(0, 1, 1))
	sum := s.sum(t)
	// The other bytes of an image make another set.
	other := filepath.Join(filepath.Dir(path), "1.png")
	data, err := os.ReadFile(filepath.Join(imageFolder, "4.png"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, data, 0o600))
	_, err = s.Pixels(1)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "1.png: the file has changed")
	require.NoError(t, s.Close())
	s, err = Open([]string{path}, tok, o)
	require.NoError(t, err)
	require.NotEqual(t, sum, s.sum(t))
	require.NoError(t, s.Close())
	// A context that ends within an image leaves out the row.
	o.Context = 12
	s, err = Open([]string{path}, tok, o)
	require.NoError(t, err)
	for i := range s.list.n {
		b, err := s.batch([]int{i})
		require.NoError(t, err)
		if s.Images() > 0 {
			require.Len(t, b.Images[0], s.rowsOf(b, o)/4)
		}
	}
	said := strings.Join(s.Stats().Files[0].Lines(), "\n")
	require.Contains(t, said, "left out: its 2 images do not end within 12 tokens")
	require.NoError(t, s.Close())
}

// rowsOf counts the placeholders of a batch.
func (s *Set) rowsOf(b Batch, o Options) int {
	n := 0
	for _, token := range b.Tokens {
		if token == o.Images.Token() {
			n++
		}
	}
	return n
}

// TestImageLimits: with a limit of memory, neither a file nor its pixels take more.
func TestImageLimits(t *testing.T) {
	tok, o := seeing(t, "gemma3")
	path := imageRows(t, `{"image": "large.png", "question": "x", "answer": "y"}`)
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, 3000, 3000))))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "large.png"), b.Bytes(), 0o600))
	s, err := Open([]string{path}, tok, o)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()+pixelBytes*3000*3000), s.DecodeBytes(0))
	require.NoError(t, s.Close())
	o.Memory = 64 << 20
	_, err = Open([]string{path}, tok, o)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.ErrorContains(t, err, "header declares 3000 x 3000 pixels")
	f, err := os.OpenFile(filepath.Join(filepath.Dir(path), "large.png"), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(65<<20))
	require.NoError(t, f.Close())
	_, err = Open([]string{path}, tok, o)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.ErrorContains(t, err, "the file has 68157440 bytes")
}

// TestImageCaptions: PaliGemma's prompt may be empty, and a completion may be all that there is to learn of an image.
func TestImageCaptions(t *testing.T) {
	tok, o := seeing(t, "paligemma")
	s, err := Open([]string{imageRows(t, `{"image": "0.png", "prompt": "", "completion": "red"}`, `{"image": "1.png", "prompt": "color", "completion": "green"}`)}, tok, o)
	require.NoError(t, err)
	b, err := s.batch([]int{0})
	require.NoError(t, err)
	begin, known := tok.ID("<s>")
	require.True(t, known)
	rows, err := o.Images.Rows(s.Layout(0))
	require.NoError(t, err)
	require.Equal(t, begin, b.Tokens[rows])
	require.NoError(t, s.Close())
	for row, says := range map[string]string{
		`{"image": "0.png", "question": "x", "answer": "y"}`:             "prompt and completion",
		`{"image": "0.png", "prompt": "<image> x", "completion": "red"}`: "prompt and completion",
	} {
		_, err := Open([]string{imageRows(t, row)}, tok, o)
		require.ErrorContains(t, err, says)
	}
}

// TestImageSums: one file that lies on white in a table, and has no alpha in a path, is two images.
func TestImageSums(t *testing.T) {
	tok, o := seeing(t, "gemma3")
	data, err := os.ReadFile(filepath.Join(imageFolder, "0.png"))
	require.NoError(t, err)
	path := imageRows(t, `{"image": "0.png", "question": "x", "answer": "y"}`)
	type file struct {
		Bytes []byte `parquet:"bytes"`
	}
	table := filepath.Join(filepath.Dir(path), "data.parquet")
	type named struct {
		Image    file   `parquet:"image"`
		Question string `parquet:"question"`
		Answer   string `parquet:"answer"`
	}
	require.NoError(t, parquet.WriteFile(table, []named{{file{data}, "x", "y"}}))
	s, err := Open([]string{path, table}, tok, o)
	require.NoError(t, err)
	require.Equal(t, 2, s.Images())
	require.NotEqual(t, s.ImageSum(0), s.ImageSum(1))
	require.NoError(t, s.Close())
}
