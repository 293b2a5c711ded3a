package images

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// tree makes a repository with one module whose image is up to date.
func tree(t *testing.T) (string, Module) {
	t.Helper()
	root := t.TempDir()
	write(t, root, "toy/kernels/toy.cu", "#include \"cuda.h\"\n  # include \"toy.h\"\n")
	write(t, root, "toy/kernels/toy.h", "body\n")
	write(t, root, Include+"/cuda.h", "#include \"emu_cuda.h\"\n#include \"hip_builtins.h\"\n#include \"snug.h\"\n")
	write(t, root, Include+"/snug.h", "#pragma once\n")
	write(t, root, Include+"/metal.h", "not for CUDA\n")
	write(t, root, Pins, "nvcc\n")
	m := Module("toy/kernels/toy")
	write(t, root, m.Image(), "image")
	sum, err := m.SumOf(root, []byte("image"))
	require.NoError(t, err)
	write(t, root, m.Sum(), sum)
	return root, m
}

func TestFind(t *testing.T) {
	root, m := tree(t)
	write(t, root, "old/kernels/old.image", "image")
	modules, err := Find(root)
	require.NoError(t, err)
	require.Equal(t, []Module{m}, modules)
	require.Equal(t, "toy", m.Name())
	orphans, err := Orphans(root)
	require.NoError(t, err)
	require.Equal(t, []string{"old/kernels/old.image"}, orphans)

	write(t, root, "above/below/kernels/below.cu", "")
	write(t, root, ".build/toy/kernels/toy.cu", "")
	modules, err = Find(root)
	require.NoError(t, err)
	require.Equal(t, []Module{m, "above/below/kernels/below"}, modules)

	modules, err = Find(t.TempDir())
	require.NoError(t, err)
	require.Empty(t, modules)
}

func TestSources(t *testing.T) {
	root, m := tree(t)
	sources, err := m.Sources(root)
	require.NoError(t, err)
	require.Len(t, sources, 4)
	require.Equal(t, "body\n", sources["toy/kernels/toy.h"])
	require.Contains(t, sources, Include+"/snug.h")

	write(t, root, "toy/kernels/toy.h", "#include \"gone.h\"\n")
	_, err = m.Sources(root)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "toy.h includes gone.h")
}

func TestArchs(t *testing.T) {
	root, m := tree(t)
	require.Equal(t, Archs, m.Archs())
	require.True(t, m.Portable())
	write(t, root, "toy/kernels/toy_sm90a.cu", "#include \"snug.h\"\n")
	m = "toy/kernels/toy_sm90a"
	require.Equal(t, []string{"90a"}, m.Archs())
	require.False(t, m.Portable())
	sum, err := m.SumOf(root, nil)
	require.NoError(t, err)
	require.Contains(t, sum, "# sm_90a\n")
	require.NotContains(t, sum, "PTX")
}

// An image that holds the same codes stays as it is, however it was compressed.
func TestPack(t *testing.T) {
	root, m := tree(t)
	codes := []gpu.Code{{Arch: gpu.Arch{Capability: 80}, Data: []byte("kernels")}}
	fresh, err := pack(filepath.Join(root, m.Image()), codes, nil)
	require.NoError(t, err, "what is there is no image")
	got, err := gpu.UnpackAll(fresh)
	require.NoError(t, err)
	require.Equal(t, codes, got)

	write(t, root, m.Image(), string(fresh))
	same, err := pack(filepath.Join(root, m.Image()), codes, nil)
	require.NoError(t, err)
	require.Equal(t, fresh, same)
	codes[0].Data = []byte("other kernels")
	other, err := pack(filepath.Join(root, m.Image()), codes, nil)
	require.NoError(t, err)
	require.NotEqual(t, fresh, other)
}

func TestCheck(t *testing.T) {
	root, m := tree(t)
	require.NoError(t, m.Check(root))
	for _, test := range []struct{ name, file, text, want string }{
		{"entry", m.Entry(), "#include \"cuda.h\"\n", "- "},
		{"header", "toy/kernels/toy.h", "other\n", "toy/kernels/toy.h"},
		{"dialect", Include + "/snug.h", "other\n", "snug.h"},
		{"pins", Pins, "nvcc 13\n", Pins},
		{"image", m.Image(), "other", m.Image()},
		{"sum", m.Sum(), "", "+ "},
	} {
		t.Run(test.name, func(t *testing.T) {
			root, m := tree(t)
			write(t, root, test.file, test.text)
			require.ErrorContains(t, m.Check(root), test.want)
		})
	}
	for _, file := range []string{m.Image(), m.Sum(), m.Entry()} {
		t.Run("no "+filepath.Base(file), func(t *testing.T) {
			root, m := tree(t)
			require.NoError(t, os.Remove(filepath.Join(root, file)))
			require.ErrorIs(t, m.Check(root), os.ErrNotExist)
		})
	}
	write(t, root, Include+"/metal.h", "other\n")
	require.NoError(t, m.Check(root), "a header that the module does not include")
}
