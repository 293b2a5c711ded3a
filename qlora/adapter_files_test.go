package qlora

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// someSave is a config with adapters whose elements are all of one value.
type someSave struct {
	c        AdapterOptions
	text     []byte
	adapters map[string]*LoRA
}

func saveOf(t *testing.T, rank int, value float32) someSave {
	s := someSave{c: AdapterOptions{Rank: rank, Alpha: 4, Targets: Modules{Names: []string{"up", "down"}}, BaseModel: fmt.Sprint(value)}}
	s.adapters = someAdapters(s.c)
	for _, a := range s.adapters {
		for _, p := range a.parts(false) {
			for i := range p.to.Len() {
				p.to.Float32s()[i] = value
			}
		}
	}
	var err error
	s.text, err = checkAdapters(&s.c, s.adapters)
	require.NoError(t, err)
	return s
}

// requireOneOf checks that a folder holds one of these saves as a whole, and returns
// which.
func requireOneOf(t *testing.T, d *filestest.Dir, saves ...someSave) int {
	t.Helper()
	c, adapters, err := loadAdapters(func(name string) (files.File, error) { return d.Open(name, os.O_RDONLY) }, nil)
	require.NoError(t, err, "%v", d.Names())
	which := slices.IndexFunc(saves, func(s someSave) bool { return s.c.BaseModel == c.BaseModel })
	require.Equal(t, saves[which].c, c)
	for name, want := range saves[which].adapters {
		require.Equal(t, values(t, want.A), values(t, adapters[name].A))
		require.Equal(t, values(t, want.B), values(t, adapters[name].B))
	}
	return which
}

// TestSaveAdaptersWithFailingCalls: whichever call of the file system fails, once or with
// all that follow, and whatever a power cut then leaves, the folder holds the adapters
// from before or the new ones, with their config; and nothing else if the calls that
// clean up succeed.
func TestSaveAdaptersWithFailingCalls(t *testing.T) {
	for _, ranks := range [][2]int{{2, 3}, {2, 2}} { // the shapes differ, or only the values do
		before, after := saveOf(t, ranks[0], 1), saveOf(t, ranks[1], 2)
		last := saveOf(t, 1, 3)
		failed, found := 0, [2]int{}
		for _, stop := range []bool{false, true} {
			for k := 1; ; k++ {
				dir := filestest.New()
				require.NoError(t, saveAdapters(dir, before.text, before.adapters))
				dir.FailCall(k, stop, syscall.EIO)
				err := saveAdapters(dir, after.text, after.adapters)
				_, _, calls := dir.Counts()
				dir.FailCall(0, false, nil)
				which := requireOneOf(t, dir, before, after)
				found[which]++
				if err == nil {
					require.Equal(t, 1, which)
				} else {
					failed++
					require.ErrorIs(t, err, syscall.EIO)
				}
				if !stop {
					require.Equal(t, []string{adapterConfigFile, adapterWeightsFile}, dir.Names(), "call %d", k)
				}
				for seed := range uint64(5) {
					survivor := dir.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
					requireOneOf(t, survivor, before, after)
					require.NoError(t, saveAdapters(survivor, last.text, last.adapters))
					requireOneOf(t, survivor, last)
					require.NotContains(t, survivor.Names(), adapterNextFile)
				}
				if err == nil && k > calls {
					break
				}
			}
		}
		require.Greater(t, failed, 20)
		require.NotZero(t, found[0])
		require.NotZero(t, found[1])
	}
}

// TestSettleAdaptersWithFailingCalls is the same for a save after a crash in the middle of
// another one.
func TestSettleAdaptersWithFailingCalls(t *testing.T) {
	before, middle, after := saveOf(t, 2, 1), saveOf(t, 3, 2), saveOf(t, 1, 3)
	crashed := func(weights bool) *filestest.Dir {
		dir, other := filestest.New(), filestest.New()
		require.NoError(t, saveAdapters(dir, before.text, before.adapters))
		require.NoError(t, saveAdapters(other, middle.text, middle.adapters))
		dir.SetBytes(adapterNextFile, other.Bytes(adapterConfigFile))
		if weights {
			dir.SetBytes(adapterWeightsFile, other.Bytes(adapterWeightsFile))
		}
		return dir
	}
	for _, weights := range []bool{false, true} {
		old := before
		if weights {
			old = middle
		}
		requireOneOf(t, crashed(weights), old)
		for _, stop := range []bool{false, true} {
			for k := 1; ; k++ {
				dir := crashed(weights)
				_, _, made := dir.Counts()
				dir.FailCall(k, stop, syscall.EIO)
				err := saveAdapters(dir, after.text, after.adapters)
				_, _, calls := dir.Counts()
				dir.FailCall(0, false, nil)
				requireOneOf(t, dir, old, after)
				for seed := range uint64(3) {
					requireOneOf(t, dir.Crash(rand.New(rand.NewPCG(seed, uint64(k)))), old, after)
				}
				if err == nil && k > calls-made {
					require.Equal(t, []string{adapterConfigFile, adapterWeightsFile}, dir.Names())
					break
				}
			}
		}
	}
}

// TestAdaptersOfDifferentSaves: files of two saves are not loaded together, unless the
// configs are the same; those of other programs are.
func TestAdaptersOfDifferentSaves(t *testing.T) {
	root := t.TempDir()
	folders := []string{filepath.Join(root, "a"), filepath.Join(root, "b"), filepath.Join(root, "mixed")}
	for i, folder := range folders {
		s := saveOf(t, 2, float32(i)) // the shapes are the same
		require.NoError(t, SaveAdapters(folder, s.c, s.adapters))
	}
	for _, name := range []string{adapterConfigFile, adapterWeightsFile} {
		for i := range 2 {
			copyFile(t, filepath.Join(folders[i], adapterConfigFile), filepath.Join(folders[2], adapterConfigFile))
			copyFile(t, filepath.Join(folders[i], adapterWeightsFile), filepath.Join(folders[2], adapterWeightsFile))
			_, _, err := LoadAdapters(folders[2], nil)
			require.NoError(t, err)
			copyFile(t, filepath.Join(folders[1-i], name), filepath.Join(folders[2], name))
			_, _, err = LoadAdapters(folders[2], nil)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, adapterConfigFile)
			require.ErrorContains(t, err, adapterWeightsFile)
			require.NoError(t, os.WriteFile(filepath.Join(folders[2], adapterNextFile), []byte("{}"), 0o600))
			_, _, err = LoadAdapters(folders[2], nil)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.NoError(t, os.Remove(filepath.Join(folders[2], adapterNextFile)))
		}
	}
	foreign(t, folders[2])
	_, _, err := LoadAdapters(folders[2], nil)
	require.NoError(t, err)
}

func copyFile(t *testing.T, from, to string) {
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o600))
}

// TestAdaptersThroughLinks reads a folder of links, such as caches of downloads have.
func TestAdaptersThroughLinks(t *testing.T) {
	root := t.TempDir()
	s := saveOf(t, 2, 1)
	require.NoError(t, SaveAdapters(filepath.Join(root, "blobs"), s.c, s.adapters))
	require.NoError(t, os.Mkdir(filepath.Join(root, "snapshot"), 0o700))
	for _, name := range []string{adapterConfigFile, adapterWeightsFile} {
		if err := os.Symlink(filepath.Join("..", "blobs", name), filepath.Join(root, "snapshot", name)); err != nil {
			t.Skip(err) // such as on Windows without the right to do it
		}
	}
	_, _, err := LoadAdapters(filepath.Join(root, "snapshot"), nil)
	require.NoError(t, err)
}

// TestDamagedAdapters flips every bit of a config that was saved, and cuts it everywhere,
// and damages the weights: what is loaded then is what was saved, apart from bits of
// elements.
func TestDamagedAdapters(t *testing.T) {
	s := saveOf(t, 2, 1)
	dir := filestest.New()
	require.NoError(t, saveAdapters(dir, s.text, s.adapters))
	config, weights := slices.Clone(dir.Bytes(adapterConfigFile)), slices.Clone(dir.Bytes(adapterWeightsFile))
	open := func(name string) (files.File, error) { return dir.Open(name, os.O_RDONLY) }
	refused := func(what string, at int) {
		_, adapters, err := loadAdapters(open, nil)
		require.ErrorIs(t, err, snug.ErrCorrupt, "%s %d", what, at)
		require.Nil(t, adapters)
	}
	for bit := range 8 * len(config) {
		damaged := slices.Clone(config)
		damaged[bit/8] ^= 1 << (bit % 8)
		dir.SetBytes(adapterConfigFile, damaged)
		refused("bit", bit)
	}
	for n := range len(config) {
		dir.SetBytes(adapterConfigFile, config[:n])
		refused("length", n)
	}
	dir.SetBytes(adapterConfigFile, config)
	for n := range len(weights) {
		dir.SetBytes(adapterWeightsFile, weights[:n])
		refused("length of weights", n)
	}
	header := 8 + int(weights[0]) + int(weights[1])<<8
	for bit := range 8 * header {
		damaged := slices.Clone(weights)
		damaged[bit/8] ^= 1 << (bit % 8)
		dir.SetBytes(adapterWeightsFile, damaged)
		c, adapters, err := loadAdapters(open, nil)
		if err != nil {
			require.Nil(t, adapters)
			continue
		}
		require.Equal(t, s.c, c)
		require.Len(t, adapters, len(s.adapters))
	}
}
