package images

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

func TestAMD(t *testing.T) {
	root, m := tree(t)
	write(t, root, "toy/kernels/toy_sm90a.cu", "")
	write(t, root, Include+"/hip_builtins.h", "#pragma once\n")
	modules, err := Find(root)
	require.NoError(t, err)
	require.Len(t, modules, 2)
	amd := AMD(modules)
	require.Equal(t, []AMDModule{{m}}, amd, "not what is for NVIDIA's cards alone")
	a := amd[0]
	require.Equal(t, "toy", a.Name())
	require.Equal(t, "toy/kernels/toy_hip.image", a.Image())

	sources, err := a.Sources(root)
	require.NoError(t, err)
	require.Contains(t, sources, Include+"/hip_builtins.h")
	require.Len(t, sources, 5)

	require.ErrorIs(t, a.Check(root), os.ErrNotExist)
	codes := []gpu.Code{{AMD: "gfx90a", Data: []byte("kernels")}}
	image, err := pack(filepath.Join(root, a.Image()), codes, nil)
	require.NoError(t, err)
	write(t, root, a.Image(), string(image))
	sum, err := a.SumOf(root, image)
	require.NoError(t, err)
	require.Contains(t, sum, "# clang and lld "+AMDCompiler)
	write(t, root, a.Sum(), sum)
	require.NoError(t, a.Check(root))
	write(t, root, Include+"/hip_builtins.h", "other\n")
	require.ErrorContains(t, a.Check(root), "hip_builtins.h")
	require.NoError(t, m.Check(root), "NVIDIA's image has no header of HIP's")

	orphans, err := Orphans(root)
	require.NoError(t, err)
	require.Empty(t, orphans)
	write(t, root, "toy/kernels/toy_sm90a_hip.image", "image")
	orphans, err = Orphans(root)
	require.NoError(t, err)
	require.Equal(t, []string{"toy/kernels/toy_sm90a_hip.image"}, orphans)
}
