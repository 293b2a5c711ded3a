package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/snug-ml/snug/gguf"
)

// hubName matches the names of models of Hugging Face's hub: Org/Name, or one of the few without an organization.
var hubName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*|(distil)?gpt2(-medium|-large|-xl)?)$`)

// notDownloaded returns an error for a path that does not exist, and is the name of a model of the hub. what is the command,
// and the flag if there is one.
func notDownloaded(what, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) || !hubName.MatchString(path) {
		return nil
	}
	return usagef("%s: no such file or folder: %s; a model of the hub is not downloaded here, but by hf download %s --local-dir %s, and given as a folder",
		what, path, path, filepath.Base(path))
}

// wantFolder returns an error unless the model of a command can be a folder of a model, or a file of llama.cpp's. It names the remedy for what
// people give in its place. The code that reads the folder reports what is wrong inside.
func wantFolder(command, dir string) error { return wantFolderOf(command, "-model", dir) }

// wantFolders is wantFolder for a model and an adapter, which may be missing.
func wantFolders(command, model, adapter string) error {
	if err := wantFolder(command, model); err != nil || adapter == "" {
		return err
	}
	return wantFolderOf(command, "-adapter", adapter)
}

// wantFolderOf is wantFolder for another flag, or for an operand, whose flag is empty.
func wantFolderOf(command, flag, dir string) error {
	what, where := command, dir
	if flag != "" {
		what, where = command+": "+flag, flag+" "+dir
	}
	if err := notDownloaded(what, dir); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return usagef("%s: %w", what, err)
	}
	switch {
	case isFolder(dir):
		return wantModel(command, flag, dir)
	case gguf.IsFile(dir): // which is a model, or an adapter
		return nil
	}
	switch strings.ToLower(filepath.Ext(dir)) {
	case ".gguf":
		return usagef("%s: %s does not begin as a file of llama.cpp does: download it again", command, where)
	case ".safetensors":
		return usagef("%s: %s is a file, want the folder of the model: %s, if config.json and tokenizer.json are in it", command, where, filepath.Dir(dir))
	}
	return usagef("%s: %s is a file, want the folder of the model", command, where)
}

// wantModel names folders that people take for the folder of a model.
func wantModel(command, flag, dir string) error {
	where := strings.TrimSpace(flag + " " + dir)
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	if flag == "-adapter" && has(mlxFile) && !has(adapterFile) {
		return usagef("%s: %s is an adapter in the form of mlx-lm, want the folder of an adapter as PEFT writes it", command, where)
	}
	if flag == "-adapter" || has("config.json") {
		return nil
	}
	snapshots, _ := filepath.Glob(filepath.Join(escapePattern(dir), "snapshots", "*", "config.json"))
	ggufs := ggufsIn(dir)
	switch {
	case has(adapterConfig):
		return usagef("%s: %s is the folder of an adapter: want the model that it is for, and -adapter %s", command, where, dir)
	case len(snapshots) > 0:
		return usagef("%s: %s is an entry of the hub's cache: want %s", command, where, filepath.Dir(snapshots[len(snapshots)-1]))
	case ggufs != "":
		return usagef("%s: %s has no config.json, and %s", command, where, ggufs)
	}
	return nil
}

// ggufsIn says which files of llama.cpp a folder has, and that one of them is wanted. It is empty if there are none.
func ggufsIn(dir string) string {
	list, _ := filepath.Glob(filepath.Join(escapePattern(dir), "*.gguf"))
	switch {
	case len(list) == 0:
		return ""
	case len(list) == 1:
		return "a file of llama.cpp: want that file, " + list[0]
	}
	const most = 5
	more := ""
	if n := len(list) - most; n > 0 {
		list, more = list[:most], fmt.Sprintf(", or one of %d more", n)
	}
	return "files of llama.cpp: want one of them, or the first of a model that is split, " + strings.Join(list, ", ") + more
}

// escapePattern returns the pattern that matches only this path.
func escapePattern(path string) string {
	return strings.NewReplacer(`*`, `[*]`, `?`, `[?]`, `[`, `[[]`).Replace(path)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
