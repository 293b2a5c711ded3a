// Empty: a folder with a go.mod is left out of what the module proxy serves, and only a clone runs these scripts.
module github.com/snug-ml/snug/scripts

go 1.25.0
