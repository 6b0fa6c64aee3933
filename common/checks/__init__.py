"""What would go wrong with a training, found out at one organisation before it: a module for each subject.

A check is a function of the process's configuration that yields findings. It changes nothing, disturbs no process that
runs, and finds faults by the very code that would stumble over them later, as far as there is such code.
"""
