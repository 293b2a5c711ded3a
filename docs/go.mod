// Empty: a folder with a go.mod is left out of what the module proxy serves, and these pages are read in the repository.
module github.com/snug-ml/snug/docs

go 1.25.0
