package dataset

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// The names of parts of data. datasets of Hugging Face knows the same.
var (
	trainNames      = []string{"train", "training"}
	validationNames = []string{"validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"} // those for tests last
)

// metadataNames are the names of the table beside the images.
var metadataNames = []string{"metadata.csv", "metadata.jsonl", "metadata.parquet"}

// foldersIn returns the folders in a folder, through links, and the names of its images and of its tables of Parquet.
func foldersIn(dir string) (folders, images, tables []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || name == "__MACOSX" {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, name))
		switch {
		case err != nil:
			return nil, nil, nil, fmt.Errorf("%w: a link that leads nowhere? remove it", err)
		case info.IsDir():
			folders = append(folders, name)
		case isPhoto(name):
			images = append(images, name)
		case slices.Contains([]string{".parquet", ".csv", ".tsv", ".jsonl", ".ndjson"}, ending(name)) && !describes(strings.TrimSuffix(name, ".gz")):
			tables = append(tables, name)
		}
	}
	return folders, images, tables, err
}

// part returns the folder of the part that is read: dir itself, if it has no parts.
func (r *classReader) part(dir string, folders []string) (string, error) {
	of := func(names []string) string {
		for _, name := range names {
			for _, f := range folders {
				if strings.EqualFold(f, name) {
					return f
				}
			}
		}
		return ""
	}
	train := of(trainNames)
	for _, f := range folders {
		if !slices.ContainsFunc(slices.Concat(trainNames, validationNames), func(name string) bool { return strings.EqualFold(f, name) }) {
			train = "" // a class is called so
		}
	}
	name := train
	if r.options.Validation {
		if name = of(validationNames); train == "" || name == "" {
			return "", fmt.Errorf("%s: no folder validation, valid, val, dev or test beside train: %w", dir, fs.ErrNotExist)
		}
	}
	return filepath.Join(dir, name), nil
}

// folder reads a folder.
func (r *classReader) folder(dir string) error {
	folders, images, tables, err := foldersIn(dir)
	if err != nil {
		return err
	}
	if inner := filepath.Join(dir, "data"); len(images) == 0 && len(tables) == 0 && slices.Equal(folders, []string{"data"}) {
		return r.folder(inner)
	}
	if len(tables) > 0 && !slices.ContainsFunc(metadataNames, func(name string) bool { return slices.Contains(tables, name) }) {
		return r.tables(dir, tables)
	}
	part, err := r.part(dir, folders)
	if err != nil {
		return err
	}
	if part != filepath.Clean(dir) {
		if len(images) > 0 {
			r.note("in %s itself are %s, not read", dir, counted(len(images), "image"))
		}
		if folders, images, tables, err = foldersIn(part); err != nil {
			return err
		}
	}
	for _, name := range metadataNames {
		if slices.Contains(tables, name) {
			return r.table(filepath.Join(part, name))
		}
	}
	if len(folders) == 0 {
		what := "has no folders"
		if len(images) > 0 {
			what = "has " + counted(len(images), "image") + " and no folders"
		}
		return fmt.Errorf("%s %s: put the images of each class into a folder with its name, or beside a metadata.csv with file_name and label: %w", part, what, snug.ErrConfig)
	}
	if len(images) > 0 {
		r.note("%s in %s, in no class's folder and not read: the first is %s", counted(len(images), "image"), part, images[0])
	}
	for _, class := range folders {
		if err := r.class(part, class); err != nil {
			return err
		}
	}
	return nil
}

// class reads the folder of a class.
func (r *classReader) class(dir, class string) error {
	folder := filepath.Join(dir, class)
	names, skipped, err := namesIn(folder, 1)
	if err != nil {
		return err
	}
	n, others, first := 0, 0, ""
	for _, path := range names {
		if !isPhoto(path) {
			if others++; others == 1 {
				first = path
			}
			continue
		}
		n++
		if err := r.add(imageSource{path: path}, "", class); err != nil {
			return remedied(err, "remove the file, or save it anew")
		}
	}
	for _, f := range skipped {
		if strings.HasPrefix(f.Skipped, "a link") {
			r.note("%s is not read: %s", f.Path, f.Skipped)
		}
	}
	remedy := ""
	if what := photoRemedies[strings.ToLower(filepath.Ext(first))]; what != "" {
		remedy = ", " + what
	}
	switch {
	case n == 0 && others > 0:
		return fmt.Errorf("%s: the class has %s and no image (%s): the first is %s%s: %w", folder, counted(others, "file"), strings.Join(photoEndings, ", "), filepath.Base(first), remedy, snug.ErrConfig)
	case n == 0:
		return fmt.Errorf("%s: the class has no image: put some into the folder, or remove it: %w", folder, snug.ErrConfig)
	case others > 0:
		r.note("%s in %s without an image's ending, not read: the first is %s%s", counted(others, "file"), folder, filepath.Base(first), remedy)
	}
	return nil
}

// tables reads the tables of a folder that are of the part.
func (r *classReader) tables(dir string, names []string) error {
	parts := map[bool][]string{}
	training := slices.ContainsFunc(names, func(name string) bool { return hasWord(dir, filepath.Join(dir, name), trainNames...) })
	for _, name := range names {
		path := filepath.Join(dir, name)
		validation := training && hasWord(dir, path, validationNames...) && !hasWord(dir, path, trainNames...)
		parts[validation] = append(parts[validation], path)
	}
	list := parts[r.options.Validation]
	if len(list) == 0 {
		return fmt.Errorf("%s: no table for validation beside one for training: %w", dir, fs.ErrNotExist)
	}
	for _, path := range list {
		if err := r.table(path); err != nil {
			return err
		}
	}
	return nil
}
