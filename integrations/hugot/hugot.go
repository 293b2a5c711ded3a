// Package hugot trains embedding models of hugot's training sessions by package gomlx: with optimizer state of 8 bits or
// in pages, weighted micro-batches, clipping and checkpoints, where TrainingSession.Train has GoMLX's trainer.
//
//	session, err := hugot.NewGoTrainingSession[*pipelines.FeatureExtractionPipeline](config)
//	o := gomlx.Options{Optimizer: quant8.AdamW{}, StateBits: 8, Clip: 1, Checkpoints: gomlx.Checkpoints{Dir: "run", SaveEvery: 100}}
//	t, err := snughugot.New(session, config, o) // imports this package as snughugot
//	err = t.Run(ctx, config.TrainDataset, 1000, 4, nil) // in place of session.Train
//	err = t.Close()
//	err = session.Save("tuned") // ONNX, as before
//
// As in hugot, the model gives each sentence of a pair the mean of its last hidden states over the tokens that the mask has,
// and the loss, the mean squared error unless the configuration has another, compares the cosine of the two with the score.
//
// Epochs, early stopping, evaluation and frozen layers of the session are hugot's and have no effect here. To freeze a
// variable, call SetTrainable(false) on it in session.GetPipeline().GetModel().GoMLXModel.Ctx before New. Sentences of each
// length and batches of each size have a graph of their own, which GoMLX builds and keeps.
//
// The package is tested with hugot v0.6.1 and its session GO, which needs no cgo.
package hugot

import (
	"fmt"
	"io"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/ml/context"
	gotrain "github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/knights-analytics/hugot"
	"github.com/knights-analytics/hugot/backends"
	"github.com/knights-analytics/hugot/pipelines"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gomlx"
)

// New returns a Trainer of a session's model. config is that of the session. It reads a batch of config.TrainDataset, which
// shows the shapes, and resets the dataset. The session owns the model: destroy it after the Trainer is closed.
//
// Errors are those of [gomlx.New] and of the dataset, and snug.ErrConfig for a session that is nil, destroyed, or of
// another pipeline than feature extraction, and for a configuration without a dataset or whose dataset has no full batch:
// a smaller batch at the end of a file is left out, as in hugot.
func New(session *hugot.TrainingSession, config hugot.TrainingConfig, o gomlx.Options) (*gomlx.Trainer, error) {
	model, err := modelOf(session)
	if err != nil {
		return nil, err
	}
	if config.TrainDataset == nil {
		return nil, fmt.Errorf("%w: hugot.New: the configuration has no TrainDataset", snug.ErrConfig)
	}
	loss := gotrain.LossFn(losses.MeanSquaredError)
	if g := config.GOMLXTrainingOptions; g != nil && g.Loss != nil {
		loss = gotrain.LossFn(g.Loss)
	}
	first, err := gomlx.Next(config.TrainDataset)
	if err == io.EOF {
		err = fmt.Errorf("%w: hugot.New: the TrainDataset has no full batch", snug.ErrConfig)
	}
	if err != nil {
		return nil, err
	}
	config.TrainDataset.Reset()
	return gomlx.New(model.Backend, model.Ctx.Reuse(), similarity(model), loss, first, o)
}

func modelOf(session *hugot.TrainingSession) (*backends.GoMLXModel, error) {
	if session == nil {
		return nil, fmt.Errorf("%w: hugot.New: the session is nil", snug.ErrConfig)
	}
	pipeline, ok := session.GetPipeline().(*pipelines.FeatureExtractionPipeline)
	if !ok {
		return nil, fmt.Errorf("%w: hugot.New: the session has a %T, want a feature extraction pipeline", snug.ErrConfig, session.GetPipeline())
	}
	if pipeline.Model == nil || pipeline.Model.GoMLXModel == nil {
		return nil, fmt.Errorf("%w: hugot.New: the session has no model of GoMLX", snug.ErrConfig)
	}
	return pipeline.Model.GoMLXModel, nil
}

// similarity returns the graph of the cosine of two sentences, whose inputs follow one another.
func similarity(model *backends.GoMLXModel) gotrain.ModelFn {
	return func(ctx *context.Context, _ any, inputs []*graph.Node) []*graph.Node {
		half := len(inputs) / 2
		embed := func(inputs []*graph.Node) *graph.Node {
			hidden := model.Call(ctx.Reuse(), inputs)[0] // [batch, tokens, width], or [batch, width]
			if hidden.Rank() < 3 {
				return hidden
			}
			mask := graph.BroadcastToShape(graph.InsertAxes(inputs[1], -1), hidden.Shape())
			return graph.MaskedReduceMean(hidden, graph.ConvertDType(mask, dtypes.Bool), 1)
		}
		return []*graph.Node{graph.CosineSimilarity(embed(inputs[:half]), embed(inputs[half:]), -1)}
	}
}
