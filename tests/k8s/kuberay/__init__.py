"""What KubeRay 1.7 does with a RayService, rule by rule.

Every function names its source in ray-project/kuberay, below ray-operator/: `validation` what the operator refuses,
`writes` what it writes back, `pods` what it makes. Nothing else in these tests assumes anything about the operator.
"""
