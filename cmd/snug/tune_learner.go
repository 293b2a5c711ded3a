package main

import (
	"context"

	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// learner is a model with the loss that the run minimizes.
type learner = train.Model[dataset.Batch]

// learner returns the model with the loss of the run.
func (t *tuning) learner() (learner, error) {
	switch {
	case t.beta > 0:
		return t.preferring()
	case t.teacherConfig != nil:
		return t.studying()
	}
	if t.imageRun.model != nil {
		return imageModel{t.imageRun.model, t.data, t.cache, t.featuresDir()}, nil
	}
	return predictor{t.model}, nil
}

// predictor is a model that learns to predict the labels.
type predictor struct{ *transformer.Model }

func (p predictor) Weight(b dataset.Batch) float64 { return b.Weight() }

func (p predictor) Backprop(ctx context.Context, b dataset.Batch, scale float32, w train.Window) (fused.Loss, error) {
	return p.Model.Backprop(ctx, b.Batch, scale, w)
}

func (p predictor) Evaluate(ctx context.Context, b dataset.Batch) (fused.Loss, error) {
	return p.Model.Evaluate(ctx, b.Batch)
}
