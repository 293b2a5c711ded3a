//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/meter"
)

// link makes a symbolic link.
func link(t *testing.T, to, path string) {
	t.Helper()
	require.NoError(t, os.Symlink(to, path))
}

// TestVerifyLinks: a link that is given stands for what it leads to.
func TestVerifyLinks(t *testing.T) {
	root := t.TempDir()
	dir, latest := filepath.Join(root, "run"), filepath.Join(root, "latest")
	runIn(t, dir, 1, 2)
	link(t, dir, latest)
	status, out, errs := snugged("verify", latest)
	require.Zero(t, status, errs)
	require.Equal(t, 2, strings.Count(out, "ok\t"), out)
	step := filepath.Join(root, "best")
	link(t, filepath.Join("run", "step-00000001"), step)
	status, out, errs = snugged("verify", step)
	require.Zero(t, status, errs)
	require.Contains(t, out, "step 1, 3 parts")
	require.NoError(t, os.Remove(filepath.Join(dir, "step-00000001", "scaler")))
	for _, path := range []string{latest, step} {
		status, out, _ = snugged("verify", "-q", path)
		require.Equal(t, 1, status)
		require.Equal(t, 1, strings.Count(out, "damaged\t"), out)
	}
	nowhere := filepath.Join(root, "nowhere")
	link(t, "none", nowhere)
	status, out, errs = snugged("verify", nowhere)
	require.Equal(t, 1, status)
	require.Empty(t, out)
	require.Contains(t, errs, "nowhere")
}

// TestVerifyPipes: a pipe with the name of weights is not passed over, and not waited for.
func TestVerifyPipes(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.safetensors"), tensorFile(t), 0o600))
	for _, name := range []string{"b.safetensors", "c.safetensors.index.json", "other"} {
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	status, out, errs := snugged("verify", dir)
	require.Equal(t, 1, status)
	require.Contains(t, errs, "2 of 3 could not be checked")
	require.Equal(t, 2, strings.Count(out, " is a pipe, want a regular file"), out)
}

// TestVerifyLinksInFolders: links to files are followed, as in the caches of Hugging Face,
// and their names count. Others could not be read.
func TestVerifyLinksInFolders(t *testing.T) {
	root := t.TempDir()
	blobs, snapshot := filepath.Join(root, "blobs"), filepath.Join(root, "snapshots", "main")
	require.NoError(t, os.MkdirAll(blobs, 0o700))
	require.NoError(t, os.MkdirAll(snapshot, 0o700))
	blob := filepath.Join(blobs, "7d865e959b2466918c9863afca942d0f")
	require.NoError(t, os.WriteFile(blob, tensorFile(t), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(blobs, "config"), []byte("{}"), 0o600))
	model := filepath.Join(snapshot, "model.safetensors")
	link(t, filepath.Join("..", "..", "blobs", filepath.Base(blob)), model)
	link(t, filepath.Join("..", "..", "blobs", "config"), filepath.Join(snapshot, "config.json"))
	size := meter.FormatBytes(int64(len(tensorFile(t))))
	for _, path := range []string{root, snapshot, model} {
		status, out, errs := snugged("verify", path)
		require.Zero(t, status, "%s%s", out, errs)
		require.Equal(t, "ok\t"+model+"\tsafetensors, "+size+"\n", out)
	}
	require.NoError(t, os.WriteFile(blob, tensorFile(t)[:20], 0o600))
	status, out, _ := snugged("verify", "-q", root)
	require.Equal(t, 1, status)
	require.Contains(t, out, "damaged\t"+model)
	require.NoError(t, os.WriteFile(blob, tensorFile(t), 0o600))

	for name, to := range map[string]string{"dangling.safetensors": "none", "folder": blobs, "loop": "loop", "notes.txt": "none", "step-00000001": blobs} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(snapshot, name)
			link(t, to, path)
			status, out, errs := snugged("verify", "-q", root)
			require.Equal(t, 1, status, name)
			require.True(t, strings.HasPrefix(out, "unread\t"+path+"\t"), "%s: %s", name, out)
			require.Equal(t, 1, strings.Count(out, "\n"), out)
			require.Contains(t, errs, "1 of 2 could not be checked")
			require.NoError(t, os.Remove(path))
		})
	}
}

// TestPipes: no command waits for the other end of a pipe.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.svg")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{{"verify", pipe}, {"verify", dir}, {"inspect", pipe}, {"plan", "-model", "gpt2", "-o", pipe}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			status, out, errs := snugged(args...)
			require.Equal(t, 1, status, args)
			require.Empty(t, out, args)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		})
	}
}
