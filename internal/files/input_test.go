package files_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// TestWhatIsNotTheFile: what downloads leave in the place of a file is named, with the remedy, for each kind of file.
func TestWhatIsNotTheFile(t *testing.T) {
	const lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 5\n"
	header := binary.LittleEndian.AppendUint64(nil, uint64('<')) // a length that begins as a page does
	for _, row := range []struct {
		name, text string
		want       string // in the error, empty for none
		data       string // the same for data and templates, which may be a page
	}{
		{"a pointer of Git LFS", lfs, "is a pointer of Git LFS, not the file: run git lfs pull", "is a pointer of Git LFS"},
		{"the same with CRLF", strings.ReplaceAll(lfs, "\n", "\r\n"), "git lfs pull", "git lfs pull"},
		{"a pointer of git-annex", "/annex/objects/MD5E-s5--x.json\n", "git annex get", "git annex get"},
		{"a page", "<!DOCTYPE html><html>", "is a web page, not the file", ""},
		{"a page after a mark and a line", "\xef\xbb\xbf\n  <HTML lang=en>", "is a web page", ""},
		{"an error of a store", `<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>`, "is a web page", ""},
		{"a refusal", "Access to model meta-llama/X is restricted.\nmore", `"Access to model meta-llama/X is restricted."`, ""},
		{"nothing", "", "is empty", ""},
		{"zeros", strings.Repeat("\x00", 9), "begins with zeros, as a download does that was not finished", ""},
		{"JSON", "{}", "", ""},
		{"a text about pointers", "The first line is version https://git-lfs.github.com/spec/v1", "", ""},
		{"safetensors", string(header), "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, []byte(row.text), 0o600))
			for _, kind := range []files.Kind{files.Description, files.Vocabulary, files.Index, files.Weights, files.Data, files.Template} {
				want := row.want
				if kind == files.Data || kind == files.Template {
					want = row.data
				}
				f, size, err := files.OpenInput(path, kind)
				if want == "" {
					require.NoError(t, err)
					require.EqualValues(t, len(row.text), size)
					require.NoError(t, f.Close())
					continue
				}
				require.ErrorIs(t, err, snug.ErrCorrupt)
				require.ErrorContains(t, err, path+" ")
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// TestReadInput: a file is read through links, as a whole, and only within the limit of its kind.
func TestReadInput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"a":1}`), 0o600))
	got, err := files.ReadInput(path, files.Description)
	require.NoError(t, err)
	require.Equal(t, `{"a":1}`, string(got))

	_, err = files.ReadInput(path, files.Weights)
	require.ErrorIs(t, err, snug.ErrConfig, "files of any size are not read as a whole")
	_, err = files.ReadInput(filepath.Join(dir, "none"), files.Description)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = files.ReadInput(dir, files.Description)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "is a folder")

	for _, kind := range []files.Kind{files.Description, files.Template, files.Vocabulary, files.Index} {
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte(" "), 1), 0o600))
		require.NoError(t, os.Truncate(path, kind.Limit()))
		f, _, err := files.OpenInput(path, kind)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, os.Truncate(path, kind.Limit()+1)) // which takes no room on the disk
		_, err = files.ReadInput(path, kind)
		require.ErrorIs(t, err, snug.ErrCorrupt)
		require.ErrorContains(t, err, "bytes, want at most")
	}

	for _, to := range []string{"target.json", filepath.Join(dir, "target.json")} {
		link := filepath.Join(dir, "link.json")
		if err := os.Symlink(to, link); err != nil {
			t.Skip(err)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "target.json"), []byte("{}"), 0o600))
		got, err = files.ReadInput(link, files.Description)
		require.NoError(t, err)
		require.Equal(t, "{}", string(got))
		require.NoError(t, os.Remove(filepath.Join(dir, "target.json")))
		_, err = files.ReadInput(link, files.Description)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.NotErrorIs(t, err, os.ErrNotExist, "the file is wanted, or there would be no link")
		require.ErrorContains(t, err, "link.json is a link to "+to+", which is not there")
		require.NoError(t, os.Remove(link))
		require.NoError(t, os.Symlink("link.json", link))
		_, err = files.ReadInput(link, files.Description)
		require.ErrorContains(t, err, "link.json is a link to link.json")
		require.NoError(t, os.Remove(link))
	}
}
