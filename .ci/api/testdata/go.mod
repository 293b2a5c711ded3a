// Empty: a folder with a go.mod is left out of what the module proxy serves, and only tests of a clone read these files.
module github.com/snug-ml/snug/ci/api/testdata

go 1.25.0
