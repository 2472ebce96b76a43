"""A small kubelet: runs rendered pods as local processes.

It executes command, arguments, environment, files, probes, preStop, SIGTERM and SIGKILL as the pod says, and keeps
Deployments at their number through rolling updates. What it has instead of containers and a network:

- Every pod has a loopback address of its own. 0.0.0.0, 127.0.0.1, "::" and Redis' `* -::*` in its texts become it.
  Where pods can't share ports (`network.Bridge`) each has a network namespace instead, and its texts stay.
- Mounted paths become folders of the test, in texts as well.
- A Service's host:port becomes the address and target port of a ready pod behind it.
- The kubelet's own periods pass faster by a factor, but nobody is restarted sooner; everything inside pods, graces and
  preStop take their real time.
- A Ray worker's container runs one replica, as Ray Serve would host it, and `serve` answers an autoscaler for Serve.
  With `ray` there is real Ray instead: head and workers as KubeRay would start them.

Users, read-only roots, resources and network policies are not enforced.
"""
