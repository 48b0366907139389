"""Parallel plans: stages that several devices hold together, and in several copies.

Three kinds of parallelism at once, as in Piper ("Piper: Multidimensional Planner for DNN
Parallelization", NeurIPS 2021): a stage is a part of a pipeline; `t` devices run it together,
each with a shard of its operators (tensor parallelism); and there are `d` replicas of that, which
share the micro-batches of a batch among them (data parallelism). Forward passes may be run again
in the backward pass, so that less is held between the two (recomputation).

Besides stages on devices of their own there may be *shared* ones, which all devices hold together,
such as an embedding (Tessel, section IV.A): a device computes its own stage and its part of each
shared one.
"""
