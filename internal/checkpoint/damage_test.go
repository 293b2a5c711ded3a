package checkpoint_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// refused checks that a folder can neither be opened nor verified, with an error that
// names a file.
func refused(t require.TestingT, dir files.Dir, file string, what ...any) {
	_, err := checkpoint.Open(dir, checkpoint.Options{})
	require.ErrorIs(t, err, snug.ErrCorrupt, what...)
	require.ErrorContains(t, err, file, what...)
	results, err := checkpoint.Verify(dir)
	require.NoError(t, err, what...)
	damaged := 0
	for _, r := range results {
		if r.Err != nil {
			damaged++
			require.ErrorIs(t, r.Err, snug.ErrCorrupt, what...)
			require.ErrorContains(t, r.Err, file, what...)
		}
	}
	require.Equal(t, 1, damaged, what...)
}

// stepsOf returns a folder with steps, and their folders.
func stepsOf(t tester, steps ...int) (*filestest.Dir, []*filestest.Dir) {
	dir := filestest.New()
	save(t, dir, checkpoint.Options{Keep: len(steps)}, steps...)
	var subs []*filestest.Dir
	for _, name := range dir.Names() {
		sub, err := dir.Sub(name)
		require.NoError(t, err)
		subs = append(subs, sub)
	}
	return dir, subs
}

// TestEveryBitOfTheHeader: with any one changed, the checkpoint is refused.
func TestEveryBitOfTheHeader(t *testing.T) {
	dir, subs := stepsOf(t, 3)
	text := subs[0].Bytes(checkpoint.HeaderName)
	for bit := range 8 * len(text) {
		text[bit/8] ^= 1 << (bit % 8)
		refused(t, dir, "step-00000003/run.json", "bit %d", bit)
		text[bit/8] ^= 1 << (bit % 8)
	}
	_, err := load(dir)
	require.NoError(t, err)
}

// TestBitsOfParts flips 5,000 random bits of parts, one at a time.
func TestBitsOfParts(t *testing.T) {
	dir, subs := stepsOf(t, 3)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		name := partNames[rng.IntN(len(partNames))]
		data := subs[0].Bytes(name)
		bit := rng.IntN(8 * len(data))
		data[bit/8] ^= 1 << (bit % 8)
		refused(t, dir, "step-00000003/"+name, "bit %d", bit)
		data[bit/8] ^= 1 << (bit % 8)
	}
	_, err := load(dir)
	require.NoError(t, err)
}

// TestLengths cuts every file at every length, and makes it longer.
func TestLengths(t *testing.T) {
	dir, subs := stepsOf(t, 3)
	for _, name := range subs[0].Names() {
		data := bytes.Clone(subs[0].Bytes(name))
		for n := range data {
			subs[0].SetBytes(name, data[:n:n])
			refused(t, dir, "step-00000003/"+name, "%d bytes", n)
		}
		for _, more := range []string{"\n", " ", "x", string(data)} {
			subs[0].SetBytes(name, append(bytes.Clone(data), more...))
			refused(t, dir, "step-00000003/"+name)
		}
		subs[0].SetBytes(name, data)
	}
	_, err := load(dir)
	require.NoError(t, err)
}

// TestSwaps puts every file of a checkpoint in the place of every other, of the same step,
// of another step of the run, and of the same step of another run.
func TestSwaps(t *testing.T) {
	dir, subs := stepsOf(t, 2, 3)
	_, others := stepsOf(t, 2, 3)
	target := subs[1]
	sources := map[string]*filestest.Dir{"same": target, "another step": subs[0], "another run": others[1], "another run and step": others[0]}
	swaps := 0
	for what, source := range sources {
		for _, from := range source.Names() {
			data := bytes.Clone(source.Bytes(from))
			for _, to := range target.Names() {
				before := bytes.Clone(target.Bytes(to))
				if bytes.Equal(before, data) {
					require.Equal(t, "same", what)
					continue
				}
				swaps++
				target.SetBytes(to, data)
				file := to
				if from == checkpoint.HeaderName && what == "another run" && to == from {
					file = "weights" // the first that it does not list
				}
				refused(t, dir, "step-00000003/"+file, "%s: %s for %s", what, from, to)
				target.SetBytes(to, before)
			}
		}
	}
	require.Equal(t, 4*16-4, swaps)
	_, err := load(dir)
	require.NoError(t, err)
}

// TestFilesAndFolders: files that are missing, too many or something else, and folders
// with the name of another step, on a folder of the system.
func TestFilesAndFolders(t *testing.T) {
	root := t.TempDir()
	dir := files.OS(root)
	save(t, dir, checkpoint.Options{}, 2, 3)
	last := filepath.Join(root, "step-00000003")
	for _, name := range append([]string{checkpoint.HeaderName}, partNames...) {
		path, aside := filepath.Join(last, name), filepath.Join(root, "aside")
		require.NoError(t, os.Rename(path, aside))
		refused(t, dir, path)
		require.NoError(t, os.Mkdir(path, 0o700))
		refused(t, dir, path)
		require.NoError(t, os.Remove(path))
		if os.Symlink(aside, path) == nil {
			_, err := checkpoint.Open(dir, checkpoint.Options{})
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, path)
			results, err := checkpoint.Verify(dir)
			require.NoError(t, err)
			require.ErrorIs(t, results[1].Err, snug.ErrConfig)
			require.NoError(t, os.Remove(path))
		}
		require.NoError(t, os.Rename(aside, path))
	}
	for _, name := range []string{"weights2", ".hidden", "weights.tmp"} {
		path := filepath.Join(last, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		refused(t, dir, path)
		require.NoError(t, os.Remove(path))
	}
	for _, name := range []string{"step-00000004", "step-00000001", "step-00000000"} {
		require.NoError(t, os.Rename(last, filepath.Join(root, name)))
		refused(t, dir, filepath.Join(root, name, checkpoint.HeaderName))
		require.NoError(t, os.Rename(filepath.Join(root, name), last))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "step-00000009"), nil, 0o600))
	refused(t, dir, filepath.Join(root, "step-00000009"))
	require.NoError(t, os.Remove(filepath.Join(root, "step-00000009")))
	if os.Symlink(last, filepath.Join(root, "step-00000009")) == nil {
		_, err := checkpoint.Open(dir, checkpoint.Options{})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.NoError(t, os.Remove(filepath.Join(root, "step-00000009")))
	}
	step, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, 3, step)
}

// TestWhatToDo: the error for a damaged checkpoint says from which step one can go on, and
// doing what it says works.
func TestWhatToDo(t *testing.T) {
	root := t.TempDir()
	dir := files.OS(root)
	damage := func(step, name string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, step, name), []byte("x"), 0o600))
	}
	save(t, dir, checkpoint.Options{Keep: 3}, 1, 2, 3)
	damage("step-00000003", "weights")
	damage("step-00000002", "optimizer")
	_, err := load(dir)
	require.ErrorContains(t, err, "to go on from step 1, which is whole, move "+filepath.Join(root, "step-00000003")+" away")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "step-00000003")))
	_, err = load(dir)
	require.ErrorContains(t, err, "to go on from step 1")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "step-00000002")))
	step, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, 1, step)

	save(t, dir, checkpoint.Options{}, 2)
	damage("step-00000001", checkpoint.HeaderName)
	_, err = load(dir)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "to go on from step 2, which is whole, move "+filepath.Join(root, "step-00000001")+" away")
	damage("step-00000002", checkpoint.HeaderName)
	_, err = load(dir)
	require.ErrorContains(t, err, "all checkpoints are damaged")
	require.NoError(t, os.RemoveAll(filepath.Join(root, "step-00000001")))
	_, err = load(dir)
	require.ErrorContains(t, err, "to start again, move "+filepath.Join(root, "step-00000002")+" away")
}

// TestTwoRuns: checkpoints of two runs in a folder are refused.
func TestTwoRuns(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	save(t, files.OS(a), checkpoint.Options{}, 1)
	save(t, files.OS(b), checkpoint.Options{}, 2)
	require.NoError(t, os.Rename(filepath.Join(b, "step-00000002"), filepath.Join(a, "step-00000002")))
	refused(t, files.OS(a), filepath.Join(a, "step-00000001", checkpoint.HeaderName))
}

// TestReadPart: a part by itself is refused when it is damaged.
func TestReadPart(t *testing.T) {
	_, subs := stepsOf(t, 3)
	data := subs[0].Bytes("weights")
	p, err := checkpoint.ReadPart(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, 3, p.Step)
	require.Equal(t, "weights", p.Name)
	got := make([]byte, p.Payload.Size())
	_, err = p.Payload.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, payload(3, "weights"), got)
	for n := range data {
		_, err := checkpoint.ReadPart(bytes.NewReader(data[:n]), int64(n))
		require.ErrorIs(t, err, snug.ErrCorrupt, "%d bytes", n)
	}
	for bit := range 8 * len(data) {
		data[bit/8] ^= 1 << (bit % 8)
		_, err := checkpoint.ReadPart(bytes.NewReader(data), int64(len(data)))
		require.ErrorIs(t, err, snug.ErrCorrupt, "bit %d", bit)
		data[bit/8] ^= 1 << (bit % 8)
	}
}

func checkDamage(t *rapid.T) {
	dir, subs := stepsOf(t, 2, 3)
	sub := subs[rapid.IntRange(0, 1).Draw(t, "step")]
	name := rapid.SampledFrom(sub.Names()).Draw(t, "file")
	data := bytes.Clone(sub.Bytes(name))
	at := rapid.IntRange(0, len(data)).Draw(t, "at")
	end := rapid.IntRange(at, min(len(data), at+40)).Draw(t, "end")
	damaged := append(append(bytes.Clone(data[:at]), rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")...), data[end:]...)
	if bytes.Equal(damaged, data) {
		return
	}
	sub.SetBytes(name, damaged)
	results, err := checkpoint.Verify(dir)
	require.NoError(t, err)
	damages := 0
	for _, r := range results {
		if r.Err != nil {
			damages++
			require.ErrorIs(t, r.Err, snug.ErrCorrupt)
			require.ErrorContains(t, r.Err, name)
		}
	}
	require.Equal(t, 1, damages)
}

// TestDamage: bytes that are replaced, removed or inserted anywhere are found.
func TestDamage(t *testing.T) { rapid.Check(t, checkDamage) }

func FuzzDamage(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkDamage)) }
