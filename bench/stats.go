package main

import "slices"

// median returns the middle of samples, or the mean of the two in the middle,
// and 0 for none.
func median(samples []float64) float64 { return quantile(samples, 0.5) }

// spread returns the distance between the quartiles over the median, and 0
// for none: half of the samples lie in a range of that relative width.
func spread(samples []float64) float64 {
	m := median(samples)
	if m == 0 {
		return 0
	}
	return (quantile(samples, 0.75) - quantile(samples, 0.25)) / m
}

// quantile interpolates between the two samples next to position q.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(samples))
	at := q * float64(len(s)-1)
	i := int(at)
	if i == len(s)-1 {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}
