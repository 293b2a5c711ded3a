package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

func inspectCommand() *command {
	return &command{
		name: "inspect", args: "FILE|DIR", summary: "what a file, a checkpoint or a store holds", operands: "file",
		help: `Lists what a file or a folder holds, with types, shapes and checksums:

  a safetensors file, or a folder with model.safetensors or with shards and their index
                                  the tensors and the metadata
  a GGUF file, or the first of a model that is split
                                  the tensors and the metadata
  the folder of an adapter        its description and its tensors
  a saved state of package quant8, amp or accum
                                  its kind, its version, its progress, and its parameters
  such states in one file, written one after the other
                                  each of them
  a saved plan of recomputation   its name, stages and operations
  a checkpoint (DIR/step-00000025), or its run.json
                                  the run, its description, the step, and the parts
  a folder of checkpoints         the checkpoints, and the run's description
  a part of a checkpoint          the run, the step, and the saved state in it
  the folder of a store, or its snug.index
                                  its blobs and tensors, and the CRC-32C of each

For a single saved state or part, inspect reads all of it and checks the checksum. For a
checkpoint, a store or a safetensors file it checks only the description: snug verify reads
the rest of checkpoints and stores. The bytes of a parameter are the bytes of its state.
`,
		flags: func() flagTable { return inspectTable(new(bool), new(bool)) },
		run:   runInspect,
	}
}

func inspectTable(sum, asJSON *bool) flagTable {
	return flagTable{switchFlag("sum", sum, "also read the tensors of a safetensors file, and list the CRC-32C of each"), jsonFlag(asJSON)}
}

// content is the content of a file.
type content struct {
	Format   string            `json:"format"`
	Version  uint32            `json:"version,omitempty"`
	Bytes    int64             `json:"bytes"`
	Note     string            `json:"note,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Run      string            `json:"run,omitempty"` // Run, Step and About describe a checkpoint
	Step     int               `json:"step,omitempty"`
	About    json.RawMessage   `json:"about,omitempty"`
	Entries  []entry           `json:"entries"`
	States   []*content        `json:"states,omitempty"` // states of a file with more than one
}

// entry is a tensor, a blob or a parameter.
type entry struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"`
	Shape []int   `json:"shape"`
	Bytes int64   `json:"bytes"`
	CRC   *uint32 `json:"crc32c,omitempty"`

	SHA256 string `json:"sha256,omitempty"`
	File   string `json:"file,omitempty"` // shard that has the tensor
}

func runInspect(c *call) error {
	sum, asJSON := false, false
	args, err := c.parse(inspectTable(&sum, &asJSON), 1, 1)
	if err != nil {
		return err
	}
	if err := notDownloaded("inspect", args[0]); err != nil {
		return err
	}
	found, err := inspectPath(args[0], sum)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if asJSON {
		return writeJSON(c.stdout, found)
	}
	return found.print(c.stdout)
}

// print writes a table.
func (c *content) print(w io.Writer) error {
	head := c.Format
	if c.Version > 0 {
		head = fmt.Sprintf("%s, version %d", head, c.Version)
	}
	if c.Note != "" {
		head += ", " + c.Note
	}
	fmt.Fprintf(w, "%s: %s\n", head, meter.FormatBytes(c.Bytes))
	for _, key := range slices.Sorted(maps.Keys(c.Metadata)) {
		fmt.Fprintf(w, "  %s: %.200q\n", shown(key), c.Metadata[key])
	}
	for _, line := range description(c.About) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range c.Entries {
		crc := ""
		if e.CRC != nil {
			crc = fmt.Sprintf("\t%08x", *e.CRC)
		}
		shape := ""
		if len(e.Shape) > 0 {
			shape = fmt.Sprint(e.Shape[:min(len(e.Shape), maxShown)])
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s%s\n", shown(e.Name), e.DType, shape, meter.FormatBytes(e.Bytes), crc)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range c.States {
		if err := s.print(w); err != nil {
			return err
		}
	}
	return nil
}

// maxShown is the most characters of a name, and dimensions of a shape, in the table. JSON has all of them.
const maxShown = 300

// shown returns what the table has of a name.
func shown(name string) string {
	if len(name) > maxShown {
		name = strings.ToValidUTF8(name[:maxShown], "") + "…"
	}
	return printable(name)
}

// printable returns a name that is safe for a terminal and the table: it is quoted if it
// is not UTF-8 or holds an invisible character.
func printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return strconv.QuoteToGraphic(s)
	}
	return s
}

// The file of a store that lists its pages.
const storeIndex = "snug.index"

func inspectPath(path string, sum bool) (*content, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return inspectFolder(path, sum)
	}
	if isWeightsIndex(path) {
		return inspectShards(path, sum)
	}
	if gguf.IsFile(path) {
		return inspectGGUF(path, sum)
	}
	switch filepath.Base(path) {
	case storeIndex:
		return inspectStore(filepath.Dir(path))
	case checkpoint.HeaderName:
		if dir, is, err := headerOf(path); is || err != nil {
			if err != nil {
				return nil, err
			}
			return inspectCheckpoint(dir)
		}
	}
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if filepath.Ext(path) == ".safetensors" { // the length of its header may begin as files of other kinds do
		return inspectTensors(f, size, sum)
	}
	return inspectFile(f, size, sum)
}

func inspectFolder(path string, sum bool) (*content, error) {
	whole, name, err := absolute(path)
	switch {
	case err != nil:
		return nil, err
	case checkpoint.IsName(name):
		return inspectCheckpoint(whole)
	case holdsCheckpoints(path):
		return inspectRun(path)
	case hasHeader(path): // a checkpoint that was moved aside
		return inspectCheckpoint(whole)
	case holdsWeights(path):
		return inspectShards(path, sum)
	case holdsFile(path, adapterFile):
		return inspectAdapter(path, sum)
	case !holdsFile(path, storeIndex) && !holdsFile(path, "snug.pages"):
		if files := ggufsIn(path); files != "" {
			return nil, fmt.Errorf("the folder has %s: %w", files, snug.ErrConfig)
		}
		return nil, fmt.Errorf("the folder has no weights, no adapter, no checkpoint and no store: %w", snug.ErrConfig)
	}
	return inspectStore(path)
}

func inspectStore(dir string) (*content, error) {
	list, err := offload.Contents(dir)
	if err != nil {
		return nil, err
	}
	c := &content{Format: "store of pages", Entries: []entry{}}
	for _, in := range list {
		kind := "blob"
		if in.DType != 0 {
			kind = in.DType.String()
		}
		c.Bytes += in.Bytes
		c.Entries = append(c.Entries, entry{Name: in.Name, DType: kind, Shape: []int{in.Len}, Bytes: in.Bytes, CRC: &in.CRC})
	}
	return c, nil
}

// inspectFile describes a file of size bytes, and checks its checksum if it has one.
func inspectFile(r io.ReaderAt, size int64, sum bool) (*content, error) {
	if size == 0 {
		return nil, fmt.Errorf("the file is empty: %w", snug.ErrCorrupt)
	}
	magic := make([]byte, min(state.MagicLen, size))
	if err := safetensors.ReadFull(r, magic, 0); err != nil {
		return nil, err
	}
	switch {
	case checkpoint.IsPart(magic):
		return inspectPart(r, size)
	case state.KindOf(magic) != nil:
		return inspectState(r, size)
	case magic[0] == '{' && !isLength(magic):
		return inspectPlan(r, size)
	}
	c, err := inspectTensors(r, size, sum)
	if err != nil {
		return nil, fmt.Errorf("no file of snug's kinds, and no safetensors file: %w", err)
	}
	return c, nil
}

// isLength says whether the first bytes can be the length of a header of safetensors. JSON cannot begin so: of its first
// eight bytes none is 0, except in short files, which have no header.
func isLength(magic []byte) bool {
	return len(magic) >= 8 && binary.LittleEndian.Uint64(magic) <= safetensors.MaxHeader
}

// inspectState describes the saved states of a file, one or several in a row.
func inspectState(r io.ReaderAt, size int64) (*content, error) {
	list, err := state.DescribeAll(r, size, quant8.SavedNumbers)
	if err != nil {
		return nil, err
	}
	var all []*content
	var kinds []string
	for _, found := range list {
		c := &content{
			Format: "state of " + found.Kind, Version: found.Version, Bytes: found.Bytes,
			Note: printable(found.Note) + ", checksum right", Entries: []entry{},
		}
		for _, e := range found.Entries {
			c.Entries = append(c.Entries, entry{Name: e.Name, DType: e.Type, Shape: e.Shape, Bytes: e.Bytes})
		}
		all, kinds = append(all, c), append(kinds, found.Kind)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return &content{
		Format: fmt.Sprintf("%d states, of %s", len(all), strings.Join(kinds, ", ")), Version: all[0].Version, Bytes: size,
		Note: "checksums right", Entries: []entry{}, States: all,
	}, nil
}

// inspectPlan describes JSON: a plan of recomputation, or a file of another program.
func inspectPlan(r io.ReaderAt, size int64) (*content, error) {
	const limit = 64 << 20
	text := make([]byte, min(size, limit+1))
	if err := safetensors.ReadFull(r, text, 0); err != nil {
		return nil, err
	}
	p, err := remat.ParsePlan(text)
	if err != nil {
		return nil, fmt.Errorf("JSON, and no saved plan of recomputation: %w", err)
	}
	return &content{
		Format: "plan of recomputation", Version: 1, Bytes: size, Entries: []entry{},
		Note: fmt.Sprintf("%s, %d stages in %d operations, checksum right", printable(p.Name), p.Stages, len(p.Ops)),
	}, nil
}

func inspectTensors(r io.ReaderAt, size int64, sum bool) (*content, error) {
	h, err := safetensors.Read(r, size)
	if err != nil {
		return nil, err
	}
	c, err := inspectSet(safetensors.One(r, h, nil), sum)
	if err != nil {
		return nil, err
	}
	c.Bytes = size
	return c, nil
}
