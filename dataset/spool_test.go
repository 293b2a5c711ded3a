package dataset

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// tokensOf draws a text of 0 or more tokens.
func tokensOf(t *rapid.T, most int) []int32 {
	return rapid.SliceOfN(rapid.Int32(), 0, most).Draw(t, "tokens")
}

// sameOnDisk: a set whose tokens are in a file gives all that the same set in memory gives, whatever its limit, also if
// samples are longer than that, empty, or cut to the context.
func sameOnDisk(t *rapid.T) {
	o := Options{
		Context: rapid.IntRange(1, 12).Draw(t, "context"), Seed: rapid.Uint64().Draw(t, "seed"),
		HeldOut: rapid.Float64Range(0, 0.5).Draw(t, "held out"), Pairs: rapid.Bool().Draw(t, "pairs"),
	}
	small := o
	small.memory = rapid.IntRange(1, 150).Draw(t, "limit")
	whole, spooled := newSet(o), newSet(small)
	defer func() { require.NoError(t, spooled.Close()) }()
	blocks := rapid.Bool().Draw(t, "blocks")
	for range rapid.IntRange(1, 30).Draw(t, "texts") {
		a := tokensOf(t, 30)
		for _, s := range []*Set{whole, spooled} {
			switch {
			case o.Pairs:
				require.NoError(t, s.add(nil, a, slices.Concat(a, a)))
			case blocks:
				b := &cutter{Set: s}
				require.NoError(t, b.add(a))
				b.end()
			default:
				require.NoError(t, s.add(nil, a))
			}
		}
	}
	if whole.list.n == 0 {
		return
	}
	for _, s := range []*Set{whole, spooled} {
		require.NoError(t, s.end())
		s.holdOut()
	}
	require.Nil(t, whole.spool.file)
	want, got := whole.Stats(), spooled.Stats()
	require.Equal(t, whole.spool.len() > int64(small.memory)/tokenBytes, got.OnDisk > 0)
	got.OnDisk, got.Folder = 0, ""
	require.Equal(t, want, got)
	require.Equal(t, whole.sum(t), spooled.sum(t))
	for step := range 4 {
		require.Equal(t, whole.batchesOf(t, step, 5, 2), spooled.batchesOf(t, step, 5, 2))
	}
	all := func(s *Set) (list []Batch) {
		for b, err := range s.HeldOut(2) {
			require.NoError(t, err)
			list = append(list, b)
		}
		for b, err := range s.Once(1, 3, 5, 2) {
			require.NoError(t, err)
			list = append(list, b)
		}
		return list
	}
	require.Equal(t, all(whole), all(spooled))
}

func TestSameOnDisk(t *testing.T) { rapid.Check(t, sameOnDisk) }

func FuzzSameOnDisk(f *testing.F) { f.Fuzz(rapid.MakeFuzz(sameOnDisk)) }

// borders: whatever is added in whatever pieces comes back from any place.
func borders(t *rapid.T) {
	s := spool{limit: rapid.IntRange(1, 40).Draw(t, "limit")}
	defer func() { require.NoError(t, s.close()) }()
	var all []int32
	for range rapid.IntRange(0, 10).Draw(t, "pieces") {
		piece := tokensOf(t, 25)
		all = append(all, piece...)
		require.NoError(t, s.add(piece))
		require.LessOrEqual(t, len(s.buffer), max(s.limit, tokenBytes))
		require.EqualValues(t, len(all), s.len())
	}
	require.NoError(t, s.end())
	require.EqualValues(t, len(all), s.len())
	set := &Set{spool: s}
	for range 5 {
		lo := rapid.IntRange(0, len(all)).Draw(t, "from")
		n := rapid.IntRange(0, len(all)-lo).Draw(t, "number")
		require.True(t, slices.Equal(all[lo:lo+n], set.stored(t, sample{at: int64(lo), n: int32(n)})))
	}
}

func TestSpoolBorders(t *testing.T) { rapid.Check(t, borders) }

func FuzzSpoolBorders(f *testing.F) { f.Fuzz(rapid.MakeFuzz(borders)) }

const spooledLines = 40

// lines are samples of several lengths, one of them without tokens.
func lines() string {
	var b strings.Builder
	for i := range spooledLines {
		fmt.Fprintf(&b, "{\"prompt\": %q, \"completion\": %q}\n", strings.Repeat("why ", i%5), strings.Repeat("because ", 1+i*i%23))
	}
	return b.String() + `{"prompt": "", "completion": ""}`
}

func preferences() string {
	var b strings.Builder
	for i := range spooledLines {
		fmt.Fprintf(&b, "{\"prompt\": \"why\", \"chosen\": %q, \"rejected\": %q}\n", strings.Repeat(" so", 1+i%7), strings.Repeat(" no", 1+i%4))
	}
	return b.String()
}

// TestSumsStay: a checkpoint names the sum of its data, so that the same data have the same sum in all versions, in memory
// and on disk.
func TestSumsStay(t *testing.T) {
	for _, c := range []struct {
		name, text string
		o          Options
		sum        string
	}{
		{"a.jsonl", lines(), Options{Context: 16, EOS: eos, Seed: 7, HeldOut: 0.1}, "1649d2f1b98575491bc585a7b8352b8c653b35439dfdf15838ef9a7978f39d12"},
		{"a.txt", strings.Repeat("some words, and more. ", 99), Options{Context: 16, EOS: eos, Seed: 7, HeldOut: 0.1}, "1707579ebb6d01b59bbc47bcf69719caabe3448ff248a86af58d77e5e2c4effb"},
		{"a.jsonl", preferences(), Options{Context: 16, EOS: eos, Seed: 7, HeldOut: 0.1, Pairs: true}, "3c5d41c8844dfec2ce92e903c0fc3ac5483e8fe34a94a3b1c751e2e43cb418ec"},
	} {
		t.Run(c.text, func(t *testing.T) {
			for _, c.o.memory = range []int{0, 1, 400} {
				s, err := Open([]string{write(t, c.name, c.text)}, tok, c.o)
				require.NoError(t, err)
				require.Equal(t, c.sum, fmt.Sprintf("%x", s.sum(t)))
				require.Equal(t, c.o.memory > 0, s.Stats().OnDisk > 0)
				require.NoError(t, s.Close())
				require.NoError(t, s.Close())
			}
		})
	}
}

// TestSpoolFiles: each set has a file of its own, in $TMPDIR. It is not there for others where an open file can be removed,
// and nowhere after Close.
func TestSpoolFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir)
	path := write(t, "a.jsonl", lines())
	var sets []*Set
	for seed := range uint64(2) {
		s, err := Open([]string{path}, tok, Options{Context: 16, EOS: eos, Seed: seed, memory: 100})
		require.NoError(t, err)
		require.Equal(t, dir, s.Stats().Folder)
		sets = append(sets, s)
	}
	require.NotEqual(t, sets[0].spool.file.Name(), sets[1].spool.file.Name())
	found, err := os.ReadDir(dir)
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		require.Empty(t, found)
	}
	for _, s := range sets {
		sum := s.sum(t)
		require.NotZero(t, sum)
		require.NoError(t, s.Close())
	}
	_, err = Open([]string{path, filepath.Join(dir, "none")}, tok, Options{Context: 16, EOS: eos, memory: 100})
	require.ErrorIs(t, err, os.ErrNotExist)
	found, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestSpoolWithoutFolder(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("TMPDIR", none)
	t.Setenv("TMP", none)
	_, err := Open([]string{write(t, "a.jsonl", lines())}, tok, Options{Context: 16, EOS: eos, memory: 100})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "a.jsonl: line ")
	require.ErrorContains(t, err, "more than 100 bytes of tokens go to a temporary file: open "+none)
	require.ErrorContains(t, err, "set "+tempVariable()+" to a folder that can be written")
	require.NotContains(t, err.Error(), "\n")
}

// full is a file with room for some bytes. What is written lies far from its beginning.
type full struct {
	begin int64
	room  int
	b     []byte
	bad   error // of reads
}

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	f.b = append(f.b, b[:n]...)
	if n < len(b) {
		return n, &os.PathError{Op: "write", Path: "spool", Err: syscall.ENOSPC}
	}
	return n, nil
}

func (f *full) ReadAt(b []byte, at int64) (int, error) {
	if f.bad != nil {
		return 0, f.bad
	}
	n := copy(b, f.b[min(at-f.begin, int64(len(f.b))):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}
func (f *full) Close() error { return nil }
func (f *full) Name() string { return "spool" }

// TestFullDisk: wherever the disk is full, the error says what was written and what is wanted.
func TestFullDisk(t *testing.T) {
	path := write(t, "a.jsonl", lines())
	for room, errs := 0, 0; ; room += 37 {
		s := newSet(Options{Context: 16, EOS: eos, memory: 64})
		s.spool.file = &full{room: room}
		err := s.read([]string{path}, tok)
		if err == nil {
			require.Greater(t, errs, 10)
			break
		}
		errs++
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, fmt.Sprintf("a temporary file has %d bytes of tokens and wants %d more", room, 64-room%64))
		require.ErrorContains(t, err, "set "+tempVariable()+" to a folder with more space")
	}
}

// TestFailingReads: reads that fail, or find less than was written, are errors of all that reads.
func TestFailingReads(t *testing.T) {
	open := func() *Set {
		s, err := Open([]string{write(t, "a.jsonl", lines())}, tok, Options{Context: 16, EOS: eos, HeldOut: 0.1, memory: 100})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	closed, cut, broken := open(), open(), open()
	require.NoError(t, closed.Close())
	require.NoError(t, cut.spool.file.(*os.File).Truncate(0))
	require.NoError(t, broken.Close())
	broken.spool.file = &full{bad: syscall.EIO}
	for want, s := range map[error]*Set{os.ErrClosed: closed, snug.ErrCorrupt: cut, syscall.EIO: broken} {
		_, sum := s.Sum()
		_, part := s.Part(0, 4, 2, 1, 3)
		found := []error{sum, part}
		for _, err := range s.HeldOut(1) {
			found = append(found, err)
		}
		for _, err := range s.Once(0, 5, 4, 2) {
			found = append(found, err)
		}
		require.Len(t, found, 4, "an error ends a sequence")
		for _, err := range found {
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, "bytes of tokens at byte ")
		}
	}
}

// TestFarTokens: samples behind 2 GiB and 4 GiB, where 32 bits of an offset end.
func TestFarTokens(t *testing.T) {
	for _, begin := range []int64{1<<31 - 40, 1<<32 - 40, 1 << 40} {
		s := newSet(Options{Context: 8, memory: 16})
		s.spool.file, s.spool.written = &full{begin: begin, room: math.MaxInt}, begin
		for i := range int32(30) {
			require.NoError(t, s.add(nil, []int32{i, i + 1, i + 2}))
		}
		require.NoError(t, s.end())
		require.Equal(t, begin+30*3*tokenBytes, s.Stats().OnDisk)
		for i, x := range s.all() {
			b, err := s.pack([]sample{x})
			require.NoError(t, err)
			require.Equal(t, []int32{int32(i), int32(i) + 1}, b.Tokens)
		}
	}
}

// watched is a file whose reads look at the memory.
type watched struct {
	io.ReaderAt
	look func()
}

func (w watched) ReadAt(b []byte, at int64) (int, error) {
	w.look()
	return w.ReaderAt.ReadAt(b, at)
}

// TestMemoryStays: 20 times the data take no more memory, except for what a sample and its place in an epoch take.
func TestMemoryStays(t *testing.T) {
	kerneltest.Slow(t) // reads some megabytes of text
	type row struct {
		Text string `parquet:"text"`
	}
	const digits = 7 * 256 // of a row: each is a token
	file := func(rows int) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "a.parquet"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		w := parquet.NewGenericWriter[row](f, parquet.Compression(&parquet.Snappy))
		for i := range rows {
			_, err := w.Write([]row{{strings.Repeat(fmt.Sprintf("%07d", i), digits/7)}})
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		return f
	}
	peak := func(rows int) (most uint64) {
		look := func() {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
		f := file(rows)
		info, err := f.Stat()
		require.NoError(t, err)
		s := newSet(Options{Context: 2048, EOS: eos})
		defer func() { require.NoError(t, s.Close()) }()
		r := &reader{Set: s, tok: tok}
		r.begin("")
		require.NoError(t, r.table(watched{f, look}, info.Size()))
		look()
		require.NoError(t, s.end())
		s.holdOut()
		require.Equal(t, rows, s.Stats().Samples)
		require.EqualValues(t, rows*digits, s.Stats().Tokens)
		s.batchesOf(t, 3, 16, 4)
		look()
		return most
	}
	small, large := peak(200), peak(4000)
	t.Logf("peak of the heap: %d KiB, and %d KiB with 20 times the data", small>>10, large>>10)
	require.Less(t, large, small+8<<20)
}
