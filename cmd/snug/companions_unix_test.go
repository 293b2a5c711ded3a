//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/transformer"
)

// withCompanions adds every file that an output gets a copy of.
func withCompanions(t testing.TB, dir string) (names []string) {
	t.Helper()
	require.NoError(t, os.Mkdir(filepath.Join(dir, moreTemplates), 0o700))
	for _, name := range append(companions, moreTemplates+"/tool_use.jinja") {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			text := `{}`
			switch filepath.Ext(name) {
			case ".jinja":
				text = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
			case ".txt", ".model":
				text = "#version: 0.2\n"
			}
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		names = append(names, name)
	}
	return names
}

// copying returns the commands whose output has copies of files of the model, with their arguments except -o.
func copying(t testing.TB, model string) map[string][]string {
	t.Helper()
	adapter := filepath.Join(t.TempDir(), "adapter")
	status, _, errs := snugged("tune", "-model", publish(t), "-data", chats(t, 9), "-o", adapter, "-lora", "1", "-steps", "1", "-compute", "f32")
	require.Zero(t, status, errs)
	return map[string][]string{
		"tune":  {"tune", "-model", model, "-data", chats(t, 9), "-full", "-steps", "1", "-compute", "f32"},
		"merge": {"merge", "-model", model, "-adapter", adapter},
	}
}

// The output has the files of the model that transformers reads, and no others.
func TestCompanionsCopied(t *testing.T) {
	model := publish(t)
	names := withCompanions(t, model)
	for _, other := range []string{"README.md", "preprocessor_config.json", "modeling.py", moreTemplates + "/notes.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(model, other), []byte("{}"), 0o600))
	}
	for what, args := range copying(t, model) {
		out := filepath.Join(t.TempDir(), "out")
		status, _, errs := snugged(append(args, "-o", out)...)
		require.Zero(t, status, "%s: %s", what, errs)
		require.NotContains(t, errs, "link")
		for _, name := range names {
			want, err := os.ReadFile(filepath.Join(model, name))
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(out, name))
			require.NoError(t, err, what)
			require.Equal(t, string(want), string(got))
		}
		entries, err := os.ReadDir(out)
		require.NoError(t, err)
		require.Len(t, entries, len(companions)+3, "config.json, the weights, and the folder of templates")
		entries, err = os.ReadDir(filepath.Join(out, moreTemplates))
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
}

// A link out of the folder is not copied into the output, unless the user says so. It is refused before the first step.
func TestCompanionsThatAreLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	model := publish(t)
	names := withCompanions(t, model)
	commands := copying(t, model)
	for _, name := range names {
		path := filepath.Join(model, name)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(secret, text, 0o600))
		require.NoError(t, os.Remove(path))
		link(t, secret, path)
		for what, args := range commands {
			out := filepath.Join(t.TempDir(), "out")
			status, stdout, errs := snugged(append(args, "-o", out)...)
			require.Equal(t, 2, status, "%s %s", what, name)
			require.Contains(t, errs, fmt.Sprintf("%s is a link to %s, which is outside of its folder", path, secret))
			require.Contains(t, errs, "-copy-links")
			require.Empty(t, stdout)
			require.NoDirExists(t, out)
			if name != names[0] && name != names[len(names)-1] { // the copies that follow are of one kind
				continue
			}
			status, _, errs = snugged(append(args, "-o", out, "-copy-links")...)
			require.Zero(t, status, errs)
			got, err := os.ReadFile(filepath.Join(out, name))
			require.NoError(t, err)
			require.Equal(t, string(text), string(got))
			info, err := os.Lstat(filepath.Join(out, name))
			require.NoError(t, err)
			require.True(t, info.Mode().IsRegular())
		}
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, text, 0o600))
	}
}

// The links of the hub's cache, and links in a folder, are copied as files without a flag or a word.
func TestCompanionsOfTheCache(t *testing.T) {
	from, cache := publish(t), t.TempDir()
	blobs, snapshot := filepath.Join(cache, "blobs"), filepath.Join(cache, "snapshots", "0123")
	require.NoError(t, os.MkdirAll(blobs, 0o700))
	require.NoError(t, os.MkdirAll(snapshot, 0o700))
	entries, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.Rename(filepath.Join(from, e.Name()), filepath.Join(blobs, e.Name()+".blob")))
		link(t, filepath.Join("..", "..", "blobs", e.Name()+".blob"), filepath.Join(snapshot, e.Name()))
	}
	link(t, "tokenizer_config.json", filepath.Join(snapshot, "special_tokens_map.json"))
	for what, args := range copying(t, snapshot) {
		out := filepath.Join(t.TempDir(), "out")
		status, _, errs := snugged(append(args, "-o", out)...)
		require.Zero(t, status, "%s: %s", what, errs)
		require.NotContains(t, errs, "link")
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"} {
			info, err := os.Lstat(filepath.Join(out, name))
			require.NoError(t, err)
			require.True(t, info.Mode().IsRegular())
		}
	}
}

// A companion that cannot be copied is found before the first step, and nothing waits for a pipe.
func TestCompanionsThatCannotBeCopied(t *testing.T) {
	model := publish(t)
	commands := copying(t, model)
	for what, c := range map[string]struct {
		put  func(path string) error
		want string
	}{
		"a pipe":        {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "is a pipe, want a regular file"},
		"a device":      {func(p string) error { return os.Symlink("/dev/zero", p) }, "is a device, want a regular file"},
		"a folder":      {func(p string) error { return os.Mkdir(p, 0o700) }, "is a folder, want a file"},
		"a sparse file": {func(p string) error { return sparse(p, 1<<40) }, "has 1099511627776 bytes, want at most"},
		"a pointer": {func(p string) error {
			return os.WriteFile(p, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), 0o600)
		}, "is a pointer of Git LFS, not the file: run git lfs pull"},
		"a link to nothing": {func(p string) error { return os.Symlink("none", p) }, "is a link to none, which is not there"},
	} {
		t.Run(what, func(t *testing.T) {
			for _, name := range []string{"special_tokens_map.json", "merges.txt", "generation_config.json"} {
				path := filepath.Join(model, name)
				require.NoError(t, c.put(path))
				for _, args := range commands {
					for _, flag := range []string{"", "-copy-links"} {
						out := filepath.Join(t.TempDir(), "out")
						status, stdout, errs := snugged(append(args, strings.Fields("-o "+out+" "+flag)...)...)
						require.Equal(t, 2, status, what)
						require.Contains(t, errs, path+" "+c.want)
						require.Empty(t, stdout)
						require.NoDirExists(t, out)
					}
				}
				require.NoError(t, os.Remove(path))
			}
		})
	}
}

// sparse makes a file of zeros that takes no room.
func sparse(path string, size int64) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

// A folder whose files are links is read, and a line says so.
func TestLinkedFolders(t *testing.T) {
	from, dir := publish(t), t.TempDir()
	entries, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, e := range entries {
		link(t, filepath.Join(from, e.Name()), filepath.Join(dir, e.Name()))
	}
	adapter, linked := filepath.Join(t.TempDir(), "adapter"), t.TempDir()
	for _, args := range [][]string{
		{"tune", "-model", dir, "-data", chats(t, 9), "-o", adapter, "-lora", "1", "-steps", "1"}, {"plan", dir}, {"generate", "-model", dir, "-prompt", "a", "-tokens", "1"},
		{"tune", "-model", from, "-teacher", dir, "-distill-weight", "0.5", "-data", chats(t, 9), "-dry-run", "-base", "nf4"},
		{"merge", "-model", dir, "-adapter", linked, "-copy-links", "-o", filepath.Join(t.TempDir(), "merged")},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			if args[0] == "merge" {
				for _, name := range []string{adapterFile, adapterConfig} {
					link(t, filepath.Join(adapter, name), filepath.Join(linked, name))
				}
			}
			status, _, errs := snugged(args...)
			require.Zero(t, status, errs)
			require.Contains(t, errs, fmt.Sprintf("snug: a link is followed: %s leads to %s, and 5 more of its files\n", filepath.Join(dir, "config.json"), filepath.Join(from, "config.json")))
			if args[0] == "merge" {
				require.Contains(t, errs, fmt.Sprintf("%s leads to %s, and 1 more of its files\n", filepath.Join(linked, adapterConfig), filepath.Join(adapter, adapterConfig)))
			}
		})
	}
	for _, command := range []string{"inspect", "verify"} {
		status, out, errs := snugged(command, dir)
		require.Zero(t, status, errs)
		require.NotEmpty(t, out)
	}
}

// TestTokenizerOfTheAdapterThatIsALink: what is copied from the folder of an adapter is that folder's own, too.
func TestTokenizerOfTheAdapterThatIsALink(t *testing.T) {
	model := publish(t)
	c, err := transformer.ReadConfig(model)
	require.NoError(t, err)
	adapter, outside := grownAdapter(t, c, 5), filepath.Join(t.TempDir(), "private")
	text, err := os.ReadFile(filepath.Join(model, "tokenizer.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(outside, append(text, '\n'), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(adapter, "tokenizer.json")))
	merged := filepath.Join(t.TempDir(), "merged")
	args := []string{"merge", "-model", model, "-adapter", adapter, "-o", merged}
	status, _, errs := snugged(args...)
	require.Equal(t, 2, status, errs)
	require.Contains(t, errs, "which is outside of its folder, and -o would get a copy of that file")
	require.NoDirExists(t, merged)
	status, _, errs = snugged(append(args, "-copy-links")...)
	require.Zero(t, status, errs)
	sameFile(t, outside, filepath.Join(merged, "tokenizer.json"))
}
