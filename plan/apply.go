package plan

// Options are options that a [Plan] decides in part: *Options of packages transformer and train.
type Options interface {
	// Follow sets what p decides. The error wraps [snug.ErrConfig] where other options make p impossible, or where pages are
	// missing that p needs.
	Follow(p Plan) error
}

// Apply makes options follow the plan:
//
//	p, err := plan.Best(task.Fit(limit))
//	model, training := transformer.Options{Seed: 1}, train.Options{Clip: 1, Schedule: train.Constant(1e-4)}
//	err = p.Apply(&model, &training)
//	m, err := transformer.Open(dir, model)
//	t, err := train.New(m, training)
//
// Micro-batches then have at most Run.Micro samples. A plan with a disk needs pages: a Store of package offload with a
// HostLimit of [Task.PageBytes] in Pages of the one and in Storage of the other, and one with a HostLimit of
// [CheckpointBytes] in Checkpoints; Apply removes those that the plan does not use. The first error of Follow ends Apply.
func (p Plan) Apply(options ...Options) error {
	for _, o := range options {
		if o == nil {
			return invalid("Apply to nil")
		}
		if err := o.Follow(p); err != nil {
			return err
		}
	}
	return nil
}
