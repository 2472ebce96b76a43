"""`penstock doctor`: whether this machine can run the cluster that the settings describe. It starts nothing."""
