package dataset

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// pngOf returns a small image of a colour.
func pngOf(t *testing.T, shade uint8) []byte {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, 6, 4))
	for i := range m.Pix {
		m.Pix[i] = shade
	}
	m.Set(0, 0, color.White)
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, m))
	return b.Bytes()
}

// folderOf writes files, whose folders it makes, and returns the folder.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// described returns the images of a set as "name class".
func described(dir string, c *Classes) (list []string) {
	for i := range c.Len() {
		name := strings.TrimPrefix(strings.TrimPrefix(c.Name(i), dir), string(filepath.Separator))
		list = append(list, filepath.ToSlash(name)+" "+c.Labels()[c.Class(i)])
	}
	return list
}

type classRow struct {
	Image struct {
		Bytes []byte  `parquet:"bytes"`
		Path  *string `parquet:"path,optional"`
	} `parquet:"image"`
	Label int64  `parquet:"label"`
	Extra string `parquet:"extra"`
}

// tableOf returns a table of Parquet with images and the numbers of their classes.
func tableOf(t *testing.T, note string, labels ...int64) string {
	t.Helper()
	var rows []classRow
	for i, n := range labels {
		row := classRow{Label: n, Extra: "x"}
		row.Image.Bytes = pngOf(t, uint8(10*i))
		rows = append(rows, row)
	}
	var b bytes.Buffer
	var options []parquet.WriterOption
	if note != "" {
		options = append(options, parquet.KeyValueMetadata("huggingface", note))
	}
	require.NoError(t, parquet.Write(&b, rows, options...))
	return b.String()
}

const petsNote = `{"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["dog", "cat"], "_type": "ClassLabel"}, "extra": {"dtype": "string", "_type": "Value"}}}}`

// TestClasses: images with classes are found in all forms that people have.
func TestClasses(t *testing.T) {
	one, two, three := string(pngOf(t, 1)), string(pngOf(t, 2)), string(pngOf(t, 3))
	for name, c := range map[string]struct {
		files  map[string]string
		path   string
		o      ClassOptions
		want   []string
		labels []string
		notes  []string
	}{
		"folders": {
			files: map[string]string{"dog/b.png": one, "dog/deep/a.PNG": two, "cat/c.png": three, ".git/x.png": one, "cat/.hidden.png": one},
			want:  []string{"cat/c.png cat", "dog/b.png dog", "dog/deep/a.PNG dog"}, labels: []string{"cat", "dog"},
		},
		"other files": {
			files: map[string]string{"dog/b.png": one, "dog/notes.txt": "x", "cat/c.png": two, "cat/d.heic": "x", "lost.png": three, "README.md": "x"},
			want:  []string{"cat/c.png cat", "dog/b.png dog"}, labels: []string{"cat", "dog"},
			notes: []string{"1 image in DIR, in no class's folder and not read: the first is lost.png", "1 file in DIR/cat without an image's ending, not read: the first is d.heic, HEIC: save it as JPEG or PNG", "1 file in DIR/dog without an image's ending, not read: the first is notes.txt"},
		},
		"an image twice": {
			files: map[string]string{"dog/b.png": one, "dog/c.png": one, "cat/c.png": one, "cat/d.png": two},
			want:  []string{"cat/c.png cat", "cat/d.png cat", "dog/b.png dog", "dog/c.png dog"}, labels: []string{"cat", "dog"},
			notes: []string{"2 images are the same file as one of another class: the first is DIR/dog/b.png, as DIR/cat/c.png"},
		},
		"numbers in their order": {
			files: map[string]string{"10/b.png": one, "9/c.png": two}, want: []string{"10/b.png 10", "9/c.png 9"}, labels: []string{"9", "10"},
		},
		"the part for training": {
			files: map[string]string{"train/dog/b.png": one, "train/cat/c.png": two, "test/dog/d.png": three}, want: []string{"train/cat/c.png cat", "train/dog/b.png dog"}, labels: []string{"cat", "dog"},
		},
		"the part for validation": {
			files: map[string]string{"train/dog/b.png": one, "train/cat/c.png": two, "val/dog/d.png": three, "test/cat/d.png": one}, o: ClassOptions{Validation: true, Labels: []string{"dog", "cat"}},
			want: []string{"val/dog/d.png dog"}, labels: []string{"dog", "cat"},
		},
		"a class called train": {
			files: map[string]string{"train/b.png": one, "car/c.png": two}, want: []string{"car/c.png car", "train/b.png train"}, labels: []string{"car", "train"},
		},
		"metadata.csv": {
			files: map[string]string{"a.png": one, "deep/b.png": two, "metadata.csv": "file_name,label\na.png,dog\ndeep/b.png,cat\n"}, want: []string{"a.png dog", "deep/b.png cat"}, labels: []string{"cat", "dog"},
		},
		"metadata.jsonl": {
			files: map[string]string{"train/a.png": one, "train/b.png": two, "train/metadata.jsonl": `{"file_name": "a.png", "label": 1}` + "\n" + `{"file_name": "b.png", "label": 0}`},
			want:  []string{"train/a.png 1", "train/b.png 0"}, labels: []string{"0", "1"},
		},
		"a table by its name, with other fields": {
			files: map[string]string{"a.png": one, "b.png": two, "t.csv": "photo,kind\na.png,x\nb.png,y\n"}, path: "t.csv", o: ClassOptions{Map: map[string]string{"image": "photo", "label": "kind"}},
			want: []string{"a.png x", "b.png y"}, labels: []string{"x", "y"},
		},
		"Parquet with a ClassLabel": {
			files: map[string]string{"data/train-00000-of-00001.parquet": tableOf(t, petsNote, 1, 0, 0), "data/test-00000-of-00001.parquet": tableOf(t, petsNote, 0), "README.md": "x"},
			want:  []string{"data/train-00000-of-00001.parquet row 1 cat", "data/train-00000-of-00001.parquet row 2 dog", "data/train-00000-of-00001.parquet row 3 dog"}, labels: []string{"dog", "cat"},
		},
		"Parquet for tests": {
			files: map[string]string{"train.parquet": tableOf(t, petsNote, 1, 0), "test.parquet": tableOf(t, petsNote, 1)}, o: ClassOptions{Validation: true, Labels: []string{"cat", "dog"}},
			want: []string{"test.parquet row 1 cat"}, labels: []string{"cat", "dog"},
		},
		"names that are alike": {files: map[string]string{"Dog/a.png": one, "dog /b.png": two}, want: []string{"Dog/a.png Dog", "dog /b.png dog "}, labels: []string{"Dog", "dog "},
			notes: []string{`the classes "Dog" and "dog " differ in capitals or white space alone`}},
		"Parquet without names": {files: map[string]string{"a.parquet": tableOf(t, "", 7, 12)}, want: []string{"a.parquet row 1 7", "a.parquet row 2 12"}, labels: []string{"7", "12"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folderOf(t, c.files)
			set, err := ReadClasses(context.Background(), filepath.Join(dir, c.path), c.o)
			require.NoError(t, err)
			defer set.Close()
			require.Equal(t, c.want, described(dir, set))
			require.Equal(t, c.labels, set.Labels())
			notes := strings.ReplaceAll(filepath.ToSlash(strings.Join(set.Notes(), "\n")), filepath.ToSlash(dir), "DIR")
			require.Equal(t, strings.Join(c.notes, "\n"), notes)
			for i := range set.Len() {
				m, err := set.Image(i)
				require.NoError(t, err)
				require.Equal(t, []int{6, 4}, []int{m.Width, m.Height})
			}
			_, err = set.Image(set.Len())
			require.ErrorIs(t, err, snug.ErrConfig)
		})
	}
}

// TestClassesRefuse: what has no classes, or images that cannot be read, is an error that says where and what to do.
func TestClassesRefuse(t *testing.T) {
	one, two := string(pngOf(t, 1)), string(pngOf(t, 2))
	for name, c := range map[string]struct {
		files map[string]string
		path  string
		o     ClassOptions
		is    error
		want  string
	}{
		"nothing":           {is: snug.ErrConfig, want: "has no folders: put the images"},
		"images alone":      {files: map[string]string{"a.png": one}, is: snug.ErrConfig, want: "has 1 image and no folders"},
		"one class":         {files: map[string]string{"dog/a.png": one}, is: snug.ErrConfig, want: `all images are of the class "dog", want 2 classes`},
		"an empty class":    {files: map[string]string{"dog/a.png": one, "cat/.keep": ""}, is: snug.ErrConfig, want: "cat: the class has no image: put some into the folder, or remove it"},
		"no image":          {files: map[string]string{"dog/a.png": one, "cat/a.avif": "x"}, is: snug.ErrConfig, want: "the class has 1 file and no image"},
		"no header":         {files: map[string]string{"dog/a.png": one, "cat/b.png": "no image"}, is: snug.ErrCorrupt, want: "b.png: "},
		"a damaged image":   {files: map[string]string{"dog/a.png": one, "cat/b.png": two[:len(two)-20]}, is: snug.ErrCorrupt, want: "remove the file, or save it anew"},
		"damaged images":    {files: map[string]string{"dog/a.png": one[:len(one)-20], "cat/b.png": two[:len(two)-20]}, is: snug.ErrCorrupt, want: "2 images cannot be read"},
		"another class":     {files: map[string]string{"dog/a.png": one, "cat/b.png": two}, o: ClassOptions{Labels: []string{"dog", "ape"}}, is: snug.ErrConfig, want: `the class "cat" is none of dog, ape`},
		"no validation":     {files: map[string]string{"train/dog/a.png": one}, o: ClassOptions{Validation: true}, is: fs.ErrNotExist, want: "no folder validation"},
		"no field":          {files: map[string]string{"a.png": one, "metadata.csv": "file_name,kind\na.png,x\n"}, is: snug.ErrConfig, want: "the row has no label, want one of label, labels, class, or -map label=FIELD"},
		"no class":          {files: map[string]string{"a.png": one, "metadata.csv": "file_name,label\na.png,\n"}, is: snug.ErrConfig, want: "line 2: label is empty"},
		"a file that lacks": {files: map[string]string{"metadata.csv": "file_name,label\na.png,x\n"}, is: fs.ErrNotExist, want: "a.png"},
		"no class yet":      {files: map[string]string{"a.parquet": tableOf(t, petsNote, 0, -1)}, is: snug.ErrConfig, want: "row 2: the label is -1"},
		"beyond":            {files: map[string]string{"a.parquet": tableOf(t, petsNote, 0, 2)}, is: snug.ErrConfig, want: "row 2: the label is 2, want 0 to 1"},
		"another table":     {files: map[string]string{"a.parquet": tableOf(t, petsNote, 0), "b.parquet": tableOf(t, strings.ReplaceAll(petsNote, "dog", "ape"), 0)}, is: snug.ErrConfig, want: "and one before"},
		"a damaged note":    {files: map[string]string{"a.parquet": tableOf(t, "{", 0)}, is: snug.ErrCorrupt, want: "huggingface"},
		"one name twice":    {files: map[string]string{"a.parquet": tableOf(t, strings.ReplaceAll(petsNote, "dog", "cat"), 0, 1)}, is: snug.ErrCorrupt, want: `the classes 0 and 1 of the table are both "cat"`},
		"an image":          {files: map[string]string{"a.png": one}, path: "a.png", is: snug.ErrConfig, want: "an image, want a folder"},
		"a wrong map":       {o: ClassOptions{Map: map[string]string{"class": "x"}}, is: snug.ErrConfig, want: "want image or label"},
		"no path":           {path: "missing", is: fs.ErrNotExist, want: "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folderOf(t, c.files)
			_, err := ReadClasses(context.Background(), filepath.Join(dir, c.path), c.o)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.want)
			require.True(t, strings.HasPrefix(err.Error(), "dataset: "), err)
		})
	}
	var none context.Context
	_, err := ReadClasses(none, "x", ClassOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = ReadClasses(context.Background(), "", ClassOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = ReadClasses(done, folderOf(t, map[string]string{"dog/a.png": one, "cat/b.png": two}), ClassOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestClassesChange: links of files and of a class's folder are followed, others are noted; a file that changes is an error; and the sum tells sets apart.
func TestClassesChange(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links")
	}
	dir := folderOf(t, map[string]string{"data/dog/a.png": string(pngOf(t, 1)), "elsewhere/b.png": string(pngOf(t, 2))})
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(data, "cat")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "elsewhere", "b.png"), filepath.Join(data, "dog", "b.png")))
	require.NoError(t, os.Symlink(data, filepath.Join(data, "dog", "loop")))
	c, err := ReadClasses(context.Background(), data, ClassOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"cat/b.png cat", "dog/a.png dog", "dog/b.png dog"}, described(data, c))
	require.Contains(t, strings.Join(c.Notes(), "\n"), "loop is not read: a link to a folder")
	sum := c.Sum()
	require.NoError(t, os.WriteFile(filepath.Join(data, "dog", "a.png"), pngOf(t, 9), 0o600))
	_, err = c.Image(1)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	again, err := ReadClasses(context.Background(), data, ClassOptions{})
	require.NoError(t, err)
	require.NotEqual(t, sum, again.Sum())
	require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(data, "ape")))
	_, err = ReadClasses(context.Background(), data, ClassOptions{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, c.Close())
	require.NoError(t, (*Classes)(nil).Close())
}

// TestClassesGolden: a table that datasets wrote has its classes, in the order of its ClassLabel.
func TestClassesGolden(t *testing.T) {
	c, err := ReadClasses(context.Background(), "testdata/classes.parquet", ClassOptions{})
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, []string{"rose", "daisy", "tulip"}, c.Labels())
	require.Equal(t, 6, c.Len())
	for i := range c.Len() {
		m, err := c.Image(i)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(40 * i), 10, 20}, m.Pix[:3])
		require.Equal(t, i%3, c.Class(i))
	}
}

// TestClassesOfBytes: the name of a class that is not UTF-8, which config.json cannot have, is an error.
func TestClassesOfBytes(t *testing.T) {
	dir := t.TempDir()
	if os.Mkdir(filepath.Join(dir, "d\xffog"), 0o700) != nil {
		t.Skip("the file system has no such names")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d\xffog", "a.png"), pngOf(t, 1), 0o600))
	_, err := ReadClasses(context.Background(), dir, ClassOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "is not UTF-8")
}
