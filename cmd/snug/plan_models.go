package main

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug/plan"
)

// models has the descriptions of published models that see images: what a folder of each has besides weights and texts.
//
//go:embed models
var models embed.FS

// folderModels returns the names of the models that are folders.
func folderModels() (names []string) {
	list, err := models.ReadDir("models")
	if err != nil {
		panic(err) // it is in the program
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// planModels returns the names of all presets.
func planModels() []string { return append(plan.Models(), folderModels()...) }

// layOut writes the folder of a preset to a temporary folder, and returns its path and what removes it. The path is empty for other names.
func layOut(name string) (folder string, remove func() error, err error) {
	none := func() error { return nil }
	if !slices.Contains(folderModels(), name) {
		return "", none, nil
	}
	temporary, err := os.MkdirTemp("", "snug-plan-")
	if err != nil {
		return "", none, err
	}
	remove = func() error { return os.RemoveAll(temporary) }
	files, err := fs.Sub(models, "models/"+name)
	if err != nil {
		return "", remove, err
	}
	folder = filepath.Join(temporary, name)
	return folder, remove, os.CopyFS(folder, files)
}
