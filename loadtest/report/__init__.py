"""Kit for reports: charts as SVG and one page around them. They need no library and no network."""
