package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLicences(t *testing.T) {
	for text, want := range map[string]string{
		"Redistribution and use…\n * Redistributions in binary form must reproduce the above copyright\nnotice…": "BSD-2-Clause",
		"Redistributions in binary form must reproduce the above copyright notice. Neither the name of Google":   "BSD-3-Clause",
		"   Apache License\n   Version 2.0, January 2004":                                                        "Apache-2.0",
		"Permission is hereby granted, free of charge, to any person obtaining\na copy of this software":         "MIT",
		"# Apache License\nVersion 2.0\n\nNeither the name of":                                                   "Apache-2.0, BSD-3-Clause",
	} {
		t.Run(text, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "LICENSE.txt"), []byte(text), 0o644))
			got, err := licenceOf(dir)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	dir := t.TempDir()
	_, err := licenceOf(dir)
	require.ErrorContains(t, err, "no licence file")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "COPYING"), []byte("All rights reserved."), 0o644))
	_, err = licenceOf(dir)
	require.ErrorContains(t, err, "COPYING: a licence that is not known here")
}
